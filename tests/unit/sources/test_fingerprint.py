"""Fingerprints of contents, and what is said of two of them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from resumable_data import Sequential
from resumable_data.cursor import Recipe
from resumable_data.errors import SourceError, UsageError
from resumable_data.sources import (
    FlatTokens,
    TokenSource,
    compare_fingerprints,
    content_fingerprint,
    fingerprint,
    open_array,
    open_tokens,
)
from tests.unit.sources.writing import Documents, flat, write_arrow, write_megatron, write_parquet

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = [[1, 2, 3], [4], [5, 6], [], [7, 8, 9, 10]]
BIG_TOKENS = 258 * 2048 + 5000


class Listed:
    """The least source: a list of documents."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self.dtype: np.dtype[Any] = np.dtype(np.int64)
        self.num_tokens = sum(map(len, documents))

    def __len__(self) -> int:
        return len(self._documents)

    def lengths(self, documents: Any) -> Any:
        return np.array([len(self._documents[int(d)]) for d in documents], np.int64)

    def read(self, document: int, start: int, stop: int) -> Any:
        return np.array(self._documents[document][start:stop], np.int64)

    def describe(self) -> dict[str, int | str]:
        return {"kind": "listed"}

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        return content_fingerprint(self, full=full, documents=documents)


def in_memory(documents: Documents) -> Any:
    return open_array(np.array(flat(documents), np.int32), lengths=[len(document) for document in documents])


def expected_fingerprint(documents: Documents, rule: str) -> str:
    """What the documentation says, written the obvious way."""
    tokens = np.array(flat(documents), "<i8")
    blocks = [tokens]
    if rule == "sample" and tokens.size > 258 * 2048:
        starts = [i * (tokens.size - 2048) // 257 for i in range(258)]
        blocks = [tokens[start : start + 2048] for start in starts]
    lengths = np.array([len(document) for document in documents], "<i8")
    contents = xxhash.xxh3_128_hexdigest(b"".join(block.tobytes() for block in blocks))
    return (
        f"tokens-v1 documents={len(documents)} tokens={tokens.size} "
        f"lengths={xxhash.xxh3_128_hexdigest(lengths.tobytes())} {rule}={contents}"
    )


def big_documents(num_tokens: int = BIG_TOKENS) -> Documents:
    """Documents of very different lengths."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 50_000, num_tokens)
    edges = np.sort(rng.integers(0, num_tokens, 300))
    edges[100:120] = edges[100]
    return [part.tolist() for part in np.split(tokens, edges)]


@pytest.mark.parametrize("rule", ["sample", "full"])
@pytest.mark.parametrize("source_of", [in_memory, Listed])
@pytest.mark.parametrize("documents", [DOCUMENTS, [[5]], [[], [5], []], big_documents()], ids=len)
def test_it_is_what_the_documentation_says(
    documents: Documents, source_of: Any, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is followed to the token, for flat sources and for a user's own, whatever the size of chunks."""
    source = source_of(documents)
    assert isinstance(source, TokenSource)
    assert isinstance(source, FlatTokens) == (source_of is in_memory)
    expected = expected_fingerprint(documents, rule)
    assert source.fingerprint(full=rule == "full") == expected
    monkeypatch.setattr(fingerprint, "_CHUNK_DOCUMENTS", 7)
    monkeypatch.setattr(fingerprint, "_CHUNK_TOKENS", 1000)
    assert source.fingerprint(full=rule == "full") == expected


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=9), st.data())
def test_fingerprint_of_a_part_is_that_of_a_shorter_source(documents: Documents, data: st.DataObject) -> None:
    """The first documents of a source have the fingerprint of a source that ends there."""
    count = data.draw(st.integers(1, len(documents)))
    for full in (False, True):
        assert Listed(documents).fingerprint(full, count) == Listed(documents[:count]).fingerprint(full)


def test_it_does_not_depend_on_format_type_or_place(tmp_path: Path) -> None:
    """Files may be moved, renamed and rewritten."""
    (tmp_path / "moved").mkdir()
    sources = [
        open_tokens(write_megatron(tmp_path, [[document] for document in DOCUMENTS], "uint8")),
        open_tokens(write_megatron(tmp_path / "moved", [[d[:1], d[1:]] for d in DOCUMENTS], "int64")),
        open_tokens(write_parquet(tmp_path / "a.parquet", DOCUMENTS)),
        open_tokens(write_arrow(tmp_path / "a.arrow", DOCUMENTS, batch=2)),
        in_memory(DOCUMENTS),
    ]
    for full in (False, True):
        assert {source.fingerprint(full) for source in sources} == {
            expected_fingerprint(DOCUMENTS, "full" if full else "sample")
        }


def test_it_fits_a_recipe() -> None:
    """A recipe takes it as it is."""
    text = in_memory(big_documents()).fingerprint()
    assert len(text) <= 200
    assert Recipe(order=Sequential(5).describe(), global_batch=1, fingerprint=text).fingerprint == text


CHANGES = {
    "same": (DOCUMENTS, "same", "the same 5 documents, by all lengths and a sample of the tokens"),
    "appended": ([*DOCUMENTS, [1], []], "appended", "2 documents after the same 5"),
    "shortened": (DOCUMENTS[:4], "shortened", "5 documents then, 4 now"),
    "inserted": ([[1], *DOCUMENTS], "edited", "the first 5 documents had 10 tokens then, and have 7 now"),
    "a token": ([[1, 2, 4], *DOCUMENTS[1:]], "edited", "other tokens in the first 5 documents, of the same lengths"),
    "order": ([DOCUMENTS[1], DOCUMENTS[0], *DOCUMENTS[2:]], "edited", "other lengths among the first 5 documents"),
    "moved border": ([[1, 2], [3, 4], *DOCUMENTS[2:]], "edited", "other lengths among the first 5 documents"),
    "edited and appended": ([[1, 2, 4], *DOCUMENTS[1:], [1]], "edited", "other tokens in the first 5 documents"),
    "grown at the end": ([*DOCUMENTS[:4], [7, 8, 9, 10, 11]], "edited", "had 10 tokens then, and have 11 now"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("source_of", [in_memory, Listed])
def test_change_is_named(name: str, source_of: Any) -> None:
    """What became of the documents is said by its name, with both values."""
    now, kind, text = CHANGES[name]
    change = compare_fingerprints(source_of(DOCUMENTS).fingerprint(), source_of(now))
    assert change.kind == kind
    assert text in change.text


def test_edit_of_equal_size_is_seen_by_the_sample_or_in_full() -> None:
    """An edit inside a block of the sample is seen by it, one between two blocks in full only."""
    documents = big_documents()
    saved = {full: in_memory(documents).fingerprint(full) for full in (False, True)}
    starts = [i * (BIG_TOKENS - 2048) // 257 for i in range(258)]
    gaps = [start + 2048 for start, after in itertools.pairwise(starts) if after > start + 2048]
    tokens = np.array(flat(documents), np.int32)
    lengths = [len(document) for document in documents]
    for at, sampled in [(0, True), (BIG_TOKENS - 1, True), (starts[100], True), (gaps[0], False), (gaps[-1], False)]:
        edited = tokens.copy()
        edited[at] += 1
        source = open_array(edited, lengths=lengths)
        assert compare_fingerprints(saved[False], source).kind == ("edited" if sampled else "same")
        assert compare_fingerprints(saved[True], source).kind == "edited"
    assert compare_fingerprints(saved[True], open_array(tokens, lengths=lengths)).text.endswith("by all tokens")


def test_append_to_a_sampled_source_is_an_append() -> None:
    """The blocks of the sample lie where they lay before there was more."""
    documents = big_documents()
    saved = Listed(documents).fingerprint()
    assert compare_fingerprints(saved, Listed([*documents, *big_documents()])).kind == "appended"


@pytest.mark.parametrize("text", ["", "v2 of the corpus", "tokens-v1 documents=5", "tokens-v2 documents=1 tokens=1"])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    """Nothing is said of a change where it cannot be known."""
    with pytest.raises(UsageError, match="expected a fingerprint that begins with 'tokens-v1'"):
        compare_fingerprints(text, in_memory(DOCUMENTS))


@pytest.mark.parametrize("documents", [0, 6, -1, 1.0])
def test_part_that_is_not_there_is_refused(documents: Any) -> None:
    """A fingerprint is of documents that exist."""
    with pytest.raises(UsageError, match="documents must be an integer from 1 to 5"):
        in_memory(DOCUMENTS).fingerprint(documents=documents)


def test_source_that_contradicts_itself_is_refused() -> None:
    """Lengths below 0, a wrong number of them, and documents that overlap get no fingerprint."""
    source = Listed(DOCUMENTS)
    source.lengths = lambda documents: np.full(documents.size, -1)  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="expected as many lengths of 0 or more"):
        source.fingerprint()
    source.lengths = lambda documents: np.zeros(1, np.int64)  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="expected as many lengths"):
        source.fingerprint()
    overlapping = in_memory(DOCUMENTS)
    overlapping.starts = lambda documents: np.zeros(documents.size, np.int64)
    with pytest.raises(SourceError, match="document 1: expected it to begin where the one before ends, at token 3"):
        overlapping.fingerprint()

"""Rows as arrays: what is refused, what memory is written to, and what is asked for ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resumable_data import BestFit, open_tokens
from resumable_data.errors import SourceError, UsageError
from resumable_data.packing import PackedRows, RowBuffers, gather, prefetch, target_tokens
from resumable_data.packing.checked_rows import CheckedRows
from resumable_data.packing.stored_rows import StoredRows
from resumable_data.sources import OffsetTokens

TOKENS = np.arange(100, 121, dtype=np.uint16)
LENGTHS = np.array([5, 3, 11, 0, 2])
SOURCE = open_tokens(TOKENS, lengths=LENGTHS)
ROWS = BestFit().pack(LENGTHS, 8)  # [(2, 0, 8)], [(0, 0, 5), (1, 0, 3)], [(2, 8, 11), (4, 0, 2)]


class Lying:
    """The source above, one of whose members answers something else."""

    def __init__(self, source: Any = SOURCE, **lies: Any) -> None:
        self.source, self.lies = source, lies

    def __len__(self) -> int:
        return len(self.source)

    def __getattr__(self, name: str) -> Any:
        return self.lies[name] if name in self.lies else getattr(self.source, name)


class NotFlat(Lying):
    """The same tokens, and no array of them."""

    def __getattr__(self, name: str) -> Any:
        if name in ("tokens", "starts", "prefetch"):
            raise AttributeError(name)
        return super().__getattr__(name)


def changed(column: str, index: int, value: int) -> PackedRows:
    array = getattr(ROWS, column).copy()
    array[index] = value
    changes: dict[str, Any] = {column: array}
    return replace(ROWS, **changes)


@pytest.mark.parametrize("source", [SOURCE, NotFlat()])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed("document", 0, 5), r"documents in \[0, 5\)"),
        (changed("document", 0, -1), r"documents in \[0, 5\)"),
        (changed("document", 0, -(2**63)), r"documents in \[0, 5\)"),
        (changed("document", 4, 3), r"found \[0, 2\) of document 3, which has 0"),
        (replace(changed("stop", 2, 4), row_length=9), r"found \[0, 4\) of document 1, which has 3"),
        (replace(changed("stop", 3, 12), row_length=12), r"found \[8, 12\) of document 2, which has 11"),
        (changed("start", 1, -1), "counted from 0"),
        (changed("start", 1, -(2**63)), "counted from 0"),
        (changed("start", 1, 2**63 - 1), "at least one token in each piece"),
        (changed("stop", 1, 2**63 - 1), "at most 8 tokens in a row; found a longer piece"),
        (changed("stop", 1, -(2**63)), "at least one token in each piece"),
        (replace(ROWS, start=ROWS.start + 2**62, stop=ROWS.stop + 2**62), "of document 2, which has 11"),
        (replace(ROWS, start=np.full(5, 2**63 - 1), stop=np.full(5, 4 - 2**63)), "at least one token in each piece"),
        (replace(ROWS, start=np.zeros(5, np.int64), stop=np.full(5, 2**62)), "at most 8 tokens in a row"),
        (changed("edges", 1, 2), "at most 8 tokens in a row; found 13"),
        (changed("edges", 1, 0), "at least one piece in each row"),
        (changed("edges", 1, 2**63 - 1), "at least one piece in each row"),
        (replace(ROWS, edges=ROWS.edges[:-1]), "edges from 0 to 5"),
        (replace(ROWS, edges=ROWS.edges[:0]), "edges from 0 to 5"),
        (replace(ROWS, stop=ROWS.stop[1:]), "int64 arrays"),
        (replace(ROWS, document=ROWS.document.astype(np.float64)), "int64 arrays"),
        (replace(ROWS, row_length=0), "row_length must be an int from 1"),
    ],
)
def test_rows_that_the_source_does_not_have_are_refused(source: Any, rows: PackedRows, message: str) -> None:
    """Whatever is wrong with rows, no token is read by them, now or ahead, and the memory stays as it was."""
    buffers = RowBuffers.empty(3, rows.row_length)
    buffers.labels.fill(7)
    with pytest.raises(UsageError, match=message):
        gather(source, rows, out=buffers)
    assert (buffers.labels == 7).all()
    if rows.row_length:
        with pytest.raises(UsageError, match=message):
            prefetch(source, rows)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Lying(lengths=lambda documents: np.full(documents.size, 9.0)), r"source.lengths\(\) must give an integer"),
        (Lying(lengths=lambda documents: np.full(1, 9)), r"source.lengths\(\) must give an integer"),
        (Lying(starts=lambda documents: np.full(documents.size, 2.0)), r"source.starts\(\) must give an integer"),
        (Lying(starts=lambda documents: np.full(documents.size, -1)), "found -1 for document 2"),
        (Lying(starts=lambda documents: np.full(documents.size, 20)), "found 20 for document 2"),
        (Lying(starts=lambda documents: np.full(documents.size, 2**63 - 1)), "found 9223372036854775807 for"),
        (Lying(tokens=TOKENS[:20].copy()), r"the 20 tokens of source.tokens; found 19 for document 4"),
        (NotFlat(read=lambda *_: TOKENS[:4]), r"read\(2, 0, 8\) must give .* \(8,\); found uint16 of shape \(4,\)"),
        (NotFlat(read=lambda *_: TOKENS[0]), "found uint16"),
        (NotFlat(read=lambda _, start, stop: np.zeros(stop - start)), "found float64 of shape"),
        (NotFlat(read=lambda _, start, stop: [0] * (stop - start)), "found list"),
    ],
)
def test_a_source_that_does_not_keep_the_contract_is_refused(source: Any, message: str) -> None:
    """What a source of one's own answers is looked at before it is used."""
    with pytest.raises(SourceError, match=message):
        gather(source, ROWS)


def test_an_array_of_fractions_is_read_piece_by_piece() -> None:
    """A source whose array is no array of integers gives tokens through ``read`` only."""
    assert np.array_equal(gather(Lying(tokens=TOKENS + 1.0), ROWS).tokens, gather(SOURCE, ROWS).tokens)


@pytest.mark.parametrize("kind", [Lying, NotFlat])
def test_tokens_that_int64_cannot_hold_are_refused(kind: Any) -> None:
    """The largest that fits is passed on, the next is an error and no negative token."""
    for largest in (2**63 - 1, 2**63):
        source = kind(open_tokens(np.array([largest], np.uint64), lengths=np.array([1])))
        rows = BestFit().pack(np.array([1]), 1)
        if largest < 2**63:
            assert gather(source, rows).tokens.tolist() == [[largest]]
        else:
            with pytest.raises(SourceError, match="at most 2\\*\\*63 - 1; found 9223372036854775808"):
                gather(source, rows)


def test_cu_seqlens_never_wraps_around() -> None:
    """A batch of 2**31 places is refused before any memory is asked for."""
    rows = replace(ROWS.take(np.zeros(128, np.int64)), row_length=2**24)
    with pytest.raises(UsageError, match="fewer than 2\\*\\*31 places; found 2147483648, 128 rows of 16777216"):
        gather(SOURCE, rows)


@pytest.mark.parametrize("pad_token", [-1, 2**63, 0.5, None, True])
def test_pad_token_is_a_token(pad_token: Any) -> None:
    """An embedding has no place for others."""
    with pytest.raises(UsageError, match="pad_token must be an int from 0"):
        gather(SOURCE, ROWS, pad_token=pad_token)


def test_a_pad_token_may_be_beyond_the_stored_type() -> None:
    """A vocabulary that fills a type has its pad token after it."""
    assert gather(SOURCE, ROWS, pad_token=70_000).tokens[2].tolist() == [116, 117, 118, 119, 120, 70000, 70000, 70000]


def test_a_split_document_has_no_target_across_rows() -> None:
    """The last token of a piece has no label, though the document goes on in another row."""
    batch = gather(SOURCE, ROWS)
    assert batch.tokens[0].tolist() == list(range(108, 116))
    assert batch.labels[0].tolist() == [*range(109, 116), -100]
    assert target_tokens(ROWS).tolist() == [7, 6, 3]


def test_memory_is_written_again() -> None:
    """A smaller batch takes the first rows, and finds nothing of the one before in them."""
    buffers = RowBuffers.empty(3, 8)
    first = gather(SOURCE, ROWS, out=buffers, pad_token=9)
    assert first.tokens.base is buffers.tokens
    rows = ROWS.take(np.array([2, 1]))
    again, fresh = gather(SOURCE, rows, out=buffers), gather(SOURCE, rows)
    for name in ("tokens", "labels", "position_ids"):
        assert np.shares_memory(getattr(again, name), getattr(buffers, name))
        assert not np.shares_memory(getattr(fresh, name), getattr(buffers, name))
        assert np.array_equal(getattr(again, name), getattr(fresh, name))


@pytest.mark.parametrize(("num_rows", "row_length"), [(2, 8), (3, 7), (3, 9), (0, 8)])
def test_memory_that_does_not_fit_is_refused(num_rows: int, row_length: int) -> None:
    """A batch is never cut to what there is room for."""
    with pytest.raises(UsageError, match="out must have at least 3 rows of 8 places"):
        gather(SOURCE, ROWS, out=RowBuffers.empty(num_rows, row_length))


def read_only() -> Any:
    array = np.empty((2, 4), np.int64)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("tokens", np.empty((2, 4), np.int32)),
        ("tokens", np.empty(8, np.int64)),
        ("tokens", [[0, 0]]),
        ("labels", np.empty((2, 5), np.int64)),
        ("labels", np.empty((2, 8), np.int64)[:, ::2]),
        ("labels", np.empty((2, 4), ">i8")),
        ("labels", np.frombuffer(bytearray(65), np.int64, 8, 1).reshape(2, 4)),
        ("labels", read_only()),
        ("position_ids", np.empty((2, 4), np.int64)),
    ],
)
def test_buffers_are_looked_at_when_they_are_made(name: str, array: Any) -> None:
    """Shape, type, layout and whether they can be written to."""
    good = RowBuffers.empty(2, 4)
    with pytest.raises(UsageError, match="must be a contiguous, writeable"):
        replace(good, **{name: array})


def test_buffers_do_not_overlap() -> None:
    """What is written to one must not change another."""
    memory = np.empty((3, 4), np.int64)
    RowBuffers(memory[:1], memory[1:2], memory[2].view(np.int32)[:4].reshape(1, 4))
    with pytest.raises(UsageError, match="share memory"):
        RowBuffers(memory[:2], memory[1:], np.empty((2, 4), np.int32))


@pytest.mark.parametrize("dtype", ["uint16", "int64"])
def test_what_is_asked_for_ahead(tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range of each piece in the file, and nothing of a source that has no array."""
    TOKENS.astype(dtype).tofile(tmp_path / "tokens.bin")
    source = open_tokens(tmp_path / "tokens.bin", dtype=dtype, lengths=LENGTHS)
    asked: list[list[int]] = []
    before = OffsetTokens.prefetch

    def spy(self: OffsetTokens, starts: Any, lengths: Any) -> None:
        asked.extend([starts.tolist(), lengths.tolist()])
        before(self, starts, lengths)

    monkeypatch.setattr(OffsetTokens, "prefetch", spy)
    prefetch(source, ROWS)
    assert asked == [[8, 0, 5, 16, 19], [8, 5, 3, 3, 2]]
    assert gather(source, ROWS).tokens[1].tolist() == list(range(100, 108))
    prefetch(NotFlat(), ROWS)
    assert len(asked) == 2


def test_tokens_that_went_away_after_the_check_are_refused() -> None:
    """A source that has fewer tokens than when its rows were checked gives an error, and no other tokens."""
    checked = CheckedRows.of(SOURCE, ROWS)
    with pytest.raises(SourceError, match="found 20, which is 1 too few"):
        StoredRows.read(Lying(tokens=TOKENS[:20].copy()), checked)


@pytest.mark.parametrize("source", [SOURCE, NotFlat()])
def test_checked_rows_are_found_again_in_parts(source: Any) -> None:
    """A stretch of checked rows, and some of them, are read as rows that are checked by themselves."""
    checked = CheckedRows.of(source, ROWS)
    which = np.array([2, 0])
    for part, rows in ((checked.stretch(1, 3), ROWS.take(np.array([1, 2]))), (checked.take(which), ROWS.take(which))):
        found, expected = StoredRows.read(source, part).write(pad_token=7), gather(source, rows, pad_token=7)
        for name in ("tokens", "labels", "position_ids", "cu_seqlens"):
            assert np.array_equal(getattr(found, name), getattr(expected, name))

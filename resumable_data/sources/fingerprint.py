"""Fingerprints of contents: what tells the documents of a source from others, wherever and however they are stored.

The text is ``tokens-v1 documents=D tokens=T lengths=H sample=S``, or ``full=S`` in place of ``sample=S``:

* ``H`` is the xxh3_128 of the lengths of the documents, in order, as little-endian int64;
* ``S`` is the xxh3_128 of tokens as little-endian int64. Taken in full they are all tokens in order; as a sample they
  are 258 blocks of 2,048 tokens each, of which block i begins at token ``i * (T - 2048) // 257`` of all: the first
  block, the last, and 256 evenly between. With at most 258 blocks of tokens the sample is all of them.

So files may be moved, renamed, or rewritten in another format or integer type, and the fingerprint stays. The
fingerprint of the first D documents of a longer source is that of a source that ends there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
import numpy as np
import xxhash

from resumable_data.errors import SourceError, UsageError
from resumable_data.sources.arguments import checked_integer
from resumable_data.sources.protocol import FlatTokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.protocol import TokenArray, TokenSource

_CHUNK_DOCUMENTS = 1 << 18
_CHUNK_TOKENS = 1 << 20
_BLOCK_TOKENS = 2048
_NUM_BLOCKS = 258
_PATTERN = re.compile(
    r"tokens-v1 documents=(?P<documents>\d{1,19}) tokens=(?P<tokens>\d{1,19}) lengths=(?P<lengths>[0-9a-f]{32}) "
    r"(?P<rule>sample|full)=(?P<contents>[0-9a-f]{32})"
)

ChangeKind: TypeAlias = Literal["same", "appended", "shortened", "edited"]


class FingerprintChange(msgspec.Struct, frozen=True):
    """What became of a source since its fingerprint was taken.

    Attributes:
        kind: ``"same"``; ``"appended"``: more documents after the same ones; ``"shortened"``: fewer documents;
            ``"edited"``: other lengths or other tokens.
        text: The same for people, with both values.
    """

    kind: ChangeKind
    text: str


def content_fingerprint(source: TokenSource, *, full: bool = False, documents: int | None = None) -> str:
    """The fingerprint of a source by what it holds: at most 200 printable characters.

    Args:
        source: Any source.
        full: Whether every token counts, and not a sample of them.
        documents: Only the first so many documents, at least 1; all by default.

    Raises:
        UsageError: There are fewer documents.
        SourceError: The source says of its documents what cannot be.
    """
    count = len(source) if documents is None else checked_integer("documents", documents, 1, len(source))
    lengths_hash = xxhash.xxh3_128()
    ends = [0]  # tokens before each chunk of documents
    for _, lengths in length_chunks(source, count):
        lengths_hash.update(np.ascontiguousarray(lengths, "<i8").data)
        ends.append(ends[-1] + int(lengths.sum()))
    total = ends[-1]
    contents = xxhash.xxh3_128()
    for start, stop in [(0, total)] if full else sample_blocks(total):
        for tokens in _read_tokens(source, ends, count, start, stop):
            contents.update(np.ascontiguousarray(tokens, "<i8").data)
    return (
        f"tokens-v1 documents={count} tokens={total} lengths={lengths_hash.hexdigest()} "
        f"{'full' if full else 'sample'}={contents.hexdigest()}"
    )


def sample_blocks(num_tokens: int) -> list[tuple[int, int]]:
    """The ranges of tokens that a sample takes, of `num_tokens` in all."""
    if num_tokens <= _NUM_BLOCKS * _BLOCK_TOKENS:
        return [(0, num_tokens)]
    last = num_tokens - _BLOCK_TOKENS
    starts = [last * i // (_NUM_BLOCKS - 1) for i in range(_NUM_BLOCKS)]
    return [(start, start + _BLOCK_TOKENS) for start in starts]


def compare_fingerprints(saved: str, source: TokenSource) -> FingerprintChange:
    """What became of a source since `saved`, by the rule (sample or full) that `saved` was taken by.

    Raises:
        UsageError: `saved` is no fingerprint of a source.
    """
    old = _PATTERN.fullmatch(saved)
    if old is None:
        raise UsageError(
            f"expected a fingerprint that begins with 'tokens-v1', found {saved!r:.80}. What changed cannot be known "
            "from it. Pass the text that source.fingerprint() gave."
        )
    count, full = int(old["documents"]), old["rule"] == "full"
    if len(source) < count:
        return FingerprintChange("shortened", f"{count} documents then, {len(source)} now")
    new = _PATTERN.fullmatch(source.fingerprint(full, count))
    if new is None:
        raise SourceError("expected a source whose fingerprint is that of content_fingerprint(), found another text.")
    if new.group() == saved:
        if len(source) == count:
            seen = "all tokens" if full else "all lengths and a sample of the tokens"
            return FingerprintChange("same", f"the same {count} documents, by {seen}")
        return FingerprintChange("appended", f"{len(source) - count} documents after the same {count}")
    if new["tokens"] != old["tokens"]:
        text = f"the first {count} documents had {old['tokens']} tokens then, and have {new['tokens']} now"
    elif new["lengths"] != old["lengths"]:
        text = f"other lengths among the first {count} documents, of as many tokens together"
    else:
        text = f"other tokens in the first {count} documents, of the same lengths"
    return FingerprintChange("edited", text)


def length_chunks(source: TokenSource, count: int) -> Iterator[tuple[int, Int64Array]]:
    """The lengths of the first `count` documents, checked: (first document, (k,) int64), a chunk at a time."""
    end = 0
    for first in range(0, count, _CHUNK_DOCUMENTS):
        documents = np.arange(first, min(first + _CHUNK_DOCUMENTS, count))
        lengths = source.lengths(documents)
        if lengths.shape != documents.shape or int(lengths.min()) < 0:
            raise SourceError(
                f"documents {first} and on: expected as many lengths of 0 or more, found {lengths.shape} of them down "
                f"to {int(lengths.min()) if lengths.size else None}. Rows would be planned of tokens that do not exist."
            )
        if isinstance(source, FlatTokens):
            _check_flat(source.starts(documents), lengths, end, first)
        end += int(lengths.sum())
        yield first, lengths


def _check_flat(starts: Int64Array, lengths: Int64Array, end: int, first: int) -> None:
    expected = np.cumsum(lengths) - lengths + end
    if not np.array_equal(starts, expected):
        at = int(np.flatnonzero(starts != expected)[0])
        raise SourceError(
            f"document {first + at}: expected it to begin where the one before ends, at token {int(expected[at])}, "
            f"found {int(starts[at])}. Tokens would be read twice, or never. Write the source again."
        )


def _read_tokens(source: TokenSource, ends: list[int], count: int, start: int, stop: int) -> Iterator[TokenArray]:
    """Tokens ``[start, stop)`` of all, in parts; ``ends[c]`` are the tokens before chunk ``c`` of documents."""
    if isinstance(source, FlatTokens):
        for at in range(start, stop, _CHUNK_TOKENS):
            yield source.tokens[at : min(at + _CHUNK_TOKENS, stop)]
        return
    chunk = int(np.searchsorted(ends, start, side="right")) - 1
    while start < stop:
        first = chunk * _CHUNK_DOCUMENTS
        lengths = source.lengths(np.arange(first, min(first + _CHUNK_DOCUMENTS, count)))
        edges = ends[chunk] + np.concatenate(([0], np.cumsum(lengths)))
        document = int(np.searchsorted(edges, start, side="right")) - 1
        while start < stop and document < lengths.size:
            begin, end = int(edges[document]), min(int(edges[document + 1]), stop)
            for at in range(start, end, _CHUNK_TOKENS):
                yield source.read(first + document, at - begin, min(at + _CHUNK_TOKENS, end) - begin)
            start, document = end, document + 1
        chunk += 1

"""What is in a source, in memory that does not grow with the number of its documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.sources.fingerprint import length_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.protocol import TokenSource

SCHEMA_VERSION = 1
_NUM_POWERS = 64
_NUM_BINS = 1 << 16
_ENDS_LOOKED_AT = 64
_BAR_WIDTH = 40


class LengthBin(msgspec.Struct, frozen=True):
    """Documents of about the same length.

    Attributes:
        low: The shortest length.
        high: The longest length.
        documents: How many there are.
        tokens: Their tokens.
    """

    low: int
    high: int
    documents: int
    tokens: int


class LastToken(msgspec.Struct, frozen=True):
    """What the last tokens of documents are.

    Attributes:
        token: The last token of each document that was looked at, or None where they differ.
        looked_at: Documents whose last token was read, evenly spaced, empty ones not among them.
    """

    token: int | None
    looked_at: int


class SourceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a source holds. `to_json` and `to_text` show it.

    Attributes:
        source: What the source says of itself: kind, place, documents, tokens, type, where documents end.
        empty: Documents without tokens.
        min: Tokens of the shortest document.
        median: At least half of the documents have at most so many tokens, and at least half as many or more.
        mean: Tokens of a document on average.
        max: Tokens of the longest document.
        lengths: Bins of lengths by powers of two, from the first that holds a document to the last.
        last_token: Whether documents end in one token, as far as was looked.
        fingerprint: The source's fingerprint.
    """

    source: dict[str, int | str]
    empty: int
    min: int
    median: int
    mean: float
    max: int
    lengths: tuple[LengthBin, ...]
    last_token: LastToken
    fingerprint: str
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """The summary as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """The summary for people, with a bar for each bin of lengths."""
        rows = {key: f"{value:,}" if isinstance(value, int) else value for key, value in self.source.items()}
        if self.empty:
            rows["documents"] = f"{rows['documents']}, {self.empty:,} of them empty"
        rows["lengths"] = f"{self.min:,} to {self.max:,} tokens, median {self.median:,}, mean {self.mean:,.1f}"
        rows["last token"] = _last_token_text(self.last_token)
        rows["fingerprint"] = self.fingerprint
        width = max(map(len, rows))
        return "\n".join([*(f"{key:<{width}}  {value}" for key, value in rows.items()), "", *_chart(self.lengths)])


class _Counts(NamedTuple):
    """By power of two: documents and tokens; and the shortest and the longest length."""

    documents: Int64Array
    tokens: Int64Array
    low: int
    high: int


def summarize(source: TokenSource, *, full: bool = False) -> SourceSummary:
    """Describe a source; reads all lengths a few times, and few tokens.

    Args:
        source: Any source.
        full: Whether every token counts for the fingerprint, and not a sample.

    Raises:
        SourceError: The source says of its documents what cannot be.
    """
    fingerprint = source.fingerprint(full)  # checks every length
    counts = _count(source)
    lengths = tuple(
        LengthBin(*_range_of(power), int(counts.documents[power]), int(counts.tokens[power]))
        for power in range(counts.low.bit_length(), counts.high.bit_length() + 1)
    )
    return SourceSummary(
        source=source.describe(),
        empty=int(counts.documents[0]),
        min=counts.low,
        median=_median(source, counts),
        mean=source.num_tokens / len(source),
        max=counts.high,
        lengths=lengths,
        last_token=_last_token(source),
        fingerprint=fingerprint,
    )


def _range_of(power: int) -> tuple[int, int]:
    """The lengths of `power` binary digits."""
    return (1 << power >> 1, (1 << power) - 1)


def _count(source: TokenSource) -> _Counts:
    documents, tokens = np.zeros(_NUM_POWERS, np.int64), np.zeros(_NUM_POWERS, np.int64)
    low, high = np.iinfo(np.int64).max, 0
    for chunk in _lengths(source):
        powers = _powers(chunk)
        documents += np.bincount(powers, minlength=_NUM_POWERS)
        np.add.at(tokens, powers, chunk)  # bincount's weights are floats, and not exact
        low, high = min(low, int(chunk.min())), max(high, int(chunk.max()))
    return _Counts(documents, tokens, low, high)


def _powers(lengths: Int64Array) -> Int64Array:
    """Binary digits of each length; a length that float64 rounds up to a power of two has one less than that says."""
    powers = np.frexp(lengths.astype(np.float64))[1].astype(np.int64)
    powers -= (lengths >> np.maximum(powers - 1, 0) == 0) & (powers > 0)
    return powers


def _median(source: TokenSource, counts: _Counts) -> int:
    """The length at place ``(n - 1) // 2`` of all lengths in order: the range that holds it is made finer and finer."""
    place = (len(source) - 1) // 2
    before = np.cumsum(counts.documents)
    power = int(np.searchsorted(before, place, side="right"))
    place -= int(before[power] - counts.documents[power])
    low, high = _range_of(power)
    while low < high:
        step = -(-(high - low + 1) // _NUM_BINS)
        bins = np.zeros(_NUM_BINS, np.int64)
        for chunk in _lengths(source):
            inside = chunk[(chunk >= low) & (chunk <= high)]
            bins += np.bincount((inside - low) // step, minlength=_NUM_BINS)
        before = np.cumsum(bins)
        found = int(np.searchsorted(before, place, side="right"))
        place -= int(before[found] - bins[found])
        low, high = low + found * step, min(high, low + (found + 1) * step - 1)
    return low


def _lengths(source: TokenSource) -> Iterator[Int64Array]:
    return (lengths for _, lengths in length_chunks(source, len(source)))


def _last_token(source: TokenSource) -> LastToken:
    documents = np.unique(np.linspace(0, len(source) - 1, _ENDS_LOOKED_AT).astype(np.int64))
    lengths = source.lengths(documents)
    held = lengths > 0
    pairs = zip(documents[held].tolist(), lengths[held].tolist(), strict=True)
    last = [int(source.read(document, length - 1, length)[0]) for document, length in pairs]
    return LastToken(last[0] if len(set(last)) == 1 else None, len(last))


def _last_token_text(found: LastToken) -> str:
    if not found.looked_at:
        return "unknown, the documents that were looked at are empty"
    if found.token is None:
        return f"not the same in {found.looked_at} documents that were looked at"
    plural = "s that were" if found.looked_at > 1 else " that was"
    return f"{found.token:,} in {'all of ' * (found.looked_at > 1)}{found.looked_at} document{plural} looked at"


def _chart(bins: tuple[LengthBin, ...]) -> list[str]:
    most = max(one.documents for one in bins)
    head = ("length", "documents", "tokens")
    rows = [
        (
            f"{one.low:,}" if one.low == one.high else f"{one.low:,}-{one.high:,}",
            f"{one.documents:,}",
            f"{one.tokens:,}",
        )
        for one in bins
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    bars = ["", *("#" * -(-one.documents * _BAR_WIDTH // most) for one in bins)]
    cells = [("  ".join(map(str.rjust, row, widths)), bar) for row, bar in zip([head, *rows], bars, strict=True)]
    return [f"{text}  {bar}".rstrip() for text, bar in cells]

"""What `tokens show` says of a source."""

from __future__ import annotations

import json
import statistics
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import resumable_data as rd
from resumable_data.sources import content_fingerprint
from resumable_data.sources import fingerprint as fingerprint_module
from resumable_data.sources import summary as module
from resumable_data.sources.summary import LastToken, LengthBin, summarize

lengths_lists = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 300)), min_size=1, max_size=40).filter(any)


class Lengths:
    """A source of any lengths, whose tokens are all 7."""

    dtype = np.dtype(np.int32)

    def __init__(self, lengths: Any) -> None:
        self._lengths = np.asarray(lengths, np.int64)
        self.num_tokens = int(self._lengths.sum())

    def __len__(self) -> int:
        return self._lengths.size

    def lengths(self, documents: Any) -> Any:
        return self._lengths[documents]

    def read(self, document: int, start: int, stop: int) -> Any:
        return np.full(stop - start, 7, np.int32)

    def describe(self) -> dict[str, int | str]:
        return {"kind": "lengths", "documents": len(self), "tokens": self.num_tokens}

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        return content_fingerprint(self, full=full, documents=documents)


def bins_of(lengths: list[int]) -> list[LengthBin]:
    """Bins by powers of two, one length at a time."""
    bins = [(0, 0)] + [(2**power, 2 ** (power + 1) - 1) for power in range(63)]
    found = []
    for low, high in bins:
        inside = [length for length in lengths if low <= length <= high]
        found.append(LengthBin(low, high, len(inside), sum(inside)))
    held = [at for at, one in enumerate(found) if one.documents]
    return found[held[0] : held[-1] + 1]


@given(lengths_lists, st.integers(1, 7), st.integers(2, 9))
def test_lengths_are_counted(lengths: list[int], chunk: int, num_bins: int) -> None:
    """Extremes, median, mean and bins are those of all lengths, however few are looked at together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint_module, "_CHUNK_DOCUMENTS", chunk)
        patch.setattr(module, "_NUM_BINS", num_bins)
        found = summarize(Lengths(lengths))
    assert (found.min, found.max, found.empty) == (min(lengths), max(lengths), lengths.count(0))
    assert found.median == statistics.median_low(lengths)
    assert found.mean == pytest.approx(sum(lengths) / len(lengths))
    assert list(found.lengths) == bins_of(lengths)


@pytest.mark.parametrize("length", [2**40, 2**40 - 1, 2**53 + 1, 2**62 - 1, 2**62 - 2**5])
def test_long_documents_are_in_their_bin(length: int) -> None:
    """Lengths that no float holds exactly are counted where they belong, and found as the median."""
    found = summarize(Lengths([length, 3, length]))
    assert (found.median, found.max) == (length, length)
    assert [one for one in found.lengths if one.documents] == [
        one for one in bins_of([length, 3, length]) if one.documents
    ]


def test_memory_does_not_grow_with_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million documents take as much memory as a chunk of them: the lengths of all are never there together."""

    class Many(Lengths):
        num_tokens = 500_000 * 71_000

        def __init__(self) -> None:
            pass

        def __len__(self) -> int:
            return 1_000_000

        def lengths(self, documents: Any) -> Any:
            return np.where(documents % 2 == 0, 1000, 70_000)

    monkeypatch.setattr(fingerprint_module, "_CHUNK_DOCUMENTS", 1 << 14)
    tracemalloc.start()
    try:
        found = summarize(Many())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.min, found.median, found.max) == (1000, 1000, 70_000)
    assert peak < 4_000_000, "all lengths are 8 MB"


def test_last_tokens() -> None:
    """A token that ends all documents that were looked at is named, and none where they differ."""
    same = rd.open_tokens(np.array([1, 9, 2, 9], np.uint16), lengths=[2, 0, 2])
    assert summarize(same).last_token == LastToken(9, 2)
    other = rd.open_tokens(np.array([1, 9, 2, 8], np.uint16), lengths=[2, 2])
    assert summarize(other).last_token == LastToken(None, 2)
    assert "last token   not the same in 2 documents" in summarize(other).to_text()
    long = rd.open_tokens(np.arange(5000), lengths=np.ones(5000, np.int64))
    assert summarize(long).last_token == LastToken(None, 64)


def test_fingerprint_is_the_source_s() -> None:
    """The fingerprint is by a sample, or of all tokens where that is asked for."""
    source = rd.open_tokens(np.array([1, 9], np.uint16), lengths=[2])
    assert summarize(source).fingerprint == source.fingerprint()
    assert summarize(source, full=True).fingerprint == source.fingerprint(full=True)


def test_text_and_json() -> None:
    """The text shows what the source says of itself and a bar for each bin; JSON has the same numbers."""
    source = rd.open_tokens(np.ones(1009, np.uint16), lengths=[0, 1, 1, 1, 1, 5, 1000])
    found = summarize(source)
    assert (
        found.to_text()
        == f"""\
kind         memory
path         an array in memory
boundaries   lengths
documents    7, 1 of them empty
tokens       1,009
dtype        uint16
lengths      0 to 1,000 tokens, median 1, mean 144.1
last token   1 in all of 6 documents that were looked at
fingerprint  {source.fingerprint()}

   length  documents  tokens
        0          1       0  ##########
        1          4       4  ########################################
      2-3          0       0
      4-7          1       5  ##########
     8-15          0       0
    16-31          0       0
    32-63          0       0
   64-127          0       0
  128-255          0       0
  256-511          0       0
512-1,023          1   1,000  ##########"""
    )
    read = json.loads(found.to_json())
    assert (read["schema_version"], read["source"]["documents"], read["empty"], read["median"]) == (1, 7, 1, 1)
    assert read["lengths"][-1] == {"low": 512, "high": 1023, "documents": 1, "tokens": 1000}

"""Rows as arrays, compared with the oracle that writes one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from resumable_data import BestFit, Concat, Fill, NoPacking, open_tokens
from resumable_data.errors import UsageError
from resumable_data.packing import PackedRows, Policy, RowBatch, RowBuffers, gather, target_tokens
from resumable_data.sources import TokenSource
from tests import packing_oracle as oracle
from tests.packing_oracle import rows_of
from tests.unit.sources.writing import Documents, flat

DTYPES = ["uint8", "uint16", "int32", "uint32", "int64", "uint64", ">u2", ">i8"]


class Lists:
    """A source that has no array of all tokens."""

    def __init__(self, documents: Documents, dtype: str) -> None:
        self.documents = [np.array(document, dtype) for document in documents]
        self.dtype = np.dtype(dtype)
        self.num_tokens = len(flat(documents))

    def __len__(self) -> int:
        return len(self.documents)

    def lengths(self, documents: Any) -> Any:
        return np.array([self.documents[document].size for document in documents.tolist()], np.int64)

    def read(self, document: int, start: int, stop: int) -> Any:
        return self.documents[document][start:stop]

    def describe(self) -> dict[str, int | str]:
        return {"kind": "lists"}

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        raise NotImplementedError


class FlatLists(Lists):
    """A source that has one, of any byte order and alignment."""

    def __init__(self, documents: Documents, dtype: str, offset: int, step: int) -> None:
        super().__init__(documents, dtype)
        content = bytes(offset) + np.repeat(np.array(flat(documents), dtype), step).tobytes()
        self.tokens = np.frombuffer(content, dtype, offset=offset)[::step]

    def starts(self, documents: Any) -> Any:
        starts = np.cumsum([0, *(document.size for document in self.documents)], dtype=np.int64)
        return starts[documents]

    def prefetch(self, starts: Any, lengths: Any) -> None:
        raise NotImplementedError


@st.composite
def documents_of(draw: st.DrawFn, dtype: str, *, longest: int = 25) -> Documents:
    """Documents of any length, the largest token of the type among them."""
    largest = min(int(np.iinfo(dtype).max), 2**63 - 1)
    tokens = st.one_of(st.integers(0, 99), st.integers(0, largest), st.just(largest))
    return draw(st.lists(st.lists(tokens, max_size=longest), min_size=1, max_size=25))


def open_source(kind: str, documents: Documents, dtype: str) -> TokenSource:
    if kind == "array" and flat(documents) and np.dtype(dtype).isnative:
        return open_tokens(np.array(flat(documents), dtype), lengths=np.array([len(tokens) for tokens in documents]))
    if kind == "lists":
        return Lists(documents, dtype)
    return FlatLists(documents, dtype, offset=kind == "unaligned", step=2 if kind == "strided" else 1)


def assert_equal(batch: RowBatch, documents: Documents, rows: PackedRows, pad_token: int) -> None:
    expected = oracle.arrays(documents, rows_of(rows), rows.row_length, pad_token)
    assert batch.tokens.tolist() == expected.tokens
    assert batch.labels.tolist() == expected.labels
    assert batch.position_ids.tolist() == expected.position_ids
    assert batch.cu_seqlens.tolist() == expected.cu_seqlens
    assert batch.sequence_ids().tolist() == expected.sequence_ids
    assert batch.max_seqlen == max(np.diff(expected.cu_seqlens).tolist(), default=0)
    assert {batch.tokens.shape, batch.labels.shape, batch.position_ids.shape} == {(len(rows), rows.row_length)}
    assert {batch.tokens.dtype, batch.labels.dtype} == {np.dtype(np.int64)}
    assert {batch.position_ids.dtype, batch.cu_seqlens.dtype, batch.sequence_ids().dtype} == {np.dtype(np.int32)}
    targets = [sum(label != oracle.NO_LABEL for label in row) for row in expected.labels]
    assert target_tokens(rows).tolist() == targets


@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(["array", "flat", "unaligned", "strided", "lists"]),
    policy=st.sampled_from([BestFit(), BestFit(truncate=True), Fill(), Concat(), NoPacking()]),
    row_length=st.one_of(st.integers(1, 12), st.just(40)),
    pad_token=st.one_of(st.just(0), st.integers(0, 2**63 - 1)),
)
def test_gather(data: st.DataObject, dtype: str, kind: str, policy: Policy, row_length: int, pad_token: int) -> None:
    """Every array is the oracle's, of any rows in any order, whatever memory they are written to."""
    documents = data.draw(documents_of(dtype))
    source = open_source(kind, documents, dtype)
    packed = policy.pack(source.lengths(np.arange(len(source))), row_length)
    which = data.draw(st.lists(st.integers(0, len(packed) - 1), max_size=12)) if len(packed) else []
    rows = packed.take(np.array(which, np.int64))
    assert_equal(gather(source, rows, pad_token=pad_token), documents, rows, pad_token)
    buffers = RowBuffers.empty(len(rows) + data.draw(st.integers(0, 2)), row_length)
    for array in (buffers.tokens, buffers.labels, buffers.position_ids):
        array.fill(data.draw(st.sampled_from([-1, 77, 2**31 - 1])))
    batch = gather(source, rows, pad_token=pad_token, out=buffers)
    assert_equal(batch, documents, rows, pad_token)
    assert not len(rows) or np.shares_memory(batch.labels, buffers.labels)


FORGED = st.one_of(
    st.integers(-1, 6), st.sampled_from([-(2**63), 4 - 2**63, -(2**62), 2**31, 2**62, 2**63 - 4, 2**63 - 1])
)


@given(data=st.data(), kind=st.sampled_from(["flat", "lists"]))
def test_forged_rows(data: st.DataObject, kind: str) -> None:
    """Rows of which some numbers are others are gathered as they say, or refused where that cannot be."""
    documents = [[10, 11, 12], [], [20, 21, 22, 23, 24]]
    columns = {"document": [0, 2, 2], "start": [0, 3, 0], "stop": [3, 5, 3], "edges": [0, 2, 3]}
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(columns)))
        columns[name][data.draw(st.integers(0, 2))] = data.draw(FORGED)
    arrays: dict[str, Any] = {name: np.array(column, np.int64) for name, column in columns.items()}
    rows = PackedRows(5, **arrays)
    pieces = list(zip(columns["document"], columns["start"], columns["stop"], strict=True))
    first, middle, last = columns["edges"]
    is_sound = (
        all(0 <= number < 3 and 0 <= start < stop <= len(documents[number]) for number, start, stop in pieces)
        and (first, last) == (0, 3)
        and 0 < middle < 3
        and all(oracle.size(row) <= 5 for row in (pieces[:middle], pieces[middle:]))
    )
    source = open_source(kind, documents, "uint16")
    event(f"sound: {is_sound}")
    if is_sound:
        assert_equal(gather(source, rows), documents, rows, 0)
    else:
        with pytest.raises(UsageError):
            gather(source, rows)

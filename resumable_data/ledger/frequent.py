"""The two records that come by the million, read by the thousand: `Again` and `Commit`.

Both have few lengths in msgpack, so payloads of one length are rows of one numpy array. What does not look exactly as
the writer writes it is left to the decoder, which knows every form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AGAIN = np.dtype([("head", "u1"), ("tag", "u1"), ("is_next", "u1"), ("mark", "u1"), ("digest", ">u8"), ("ids", "u1")])
_AGAIN_HEAD, _AGAIN_TAG, _NIL, _FALSE, _TRUE, _UINT64 = 0x94, 9, 0xC0, 0xC2, 0xC3, 0xCF
_BYTES_MARKS = ((0xC4, "u1"), (0xC5, ">u2"), (0xC6, ">u4"))  # in front of IDs, with their number of bytes

_COMMIT_HEAD, _COMMIT_TAG, _FIXINT_MAX = 0x93, 4, 0x7F
_COMMIT_MARKS = {5: (0xCC, "u1"), 6: (0xCD, ">u2"), 8: (0xCE, ">u4"), 12: (0xCF, ">u8")}  # by the payload's length
_UPDATE_MAX = 1 << 61


class KeptIds(NamedTuple):
    """IDs that some records of a batch carry, as many bytes in each.

    Attributes:
        number: (k,) int64, which records of the batch they are.
        ids: (k, bytes) uint8.
    """

    number: NDArray[np.int64]
    ids: NDArray[np.uint8]


class Agains(NamedTuple):
    """`Again` records of a batch, in order.

    Attributes:
        number: (n,) int64, which records of the batch they are.
        is_next: (n,) bool.
        digest: (n,) uint64.
        kept: The IDs of those that carry them.
    """

    number: NDArray[np.int64]
    is_next: NDArray[np.bool_]
    digest: NDArray[np.uint64]
    kept: list[KeptIds]


class QuickCommits(NamedTuple):
    """`Commit` records of a batch, in order.

    Attributes:
        number: (n,) int64, which records of the batch they are.
        update: (n,) int64.
        applied: (n,) bool.
    """

    number: NDArray[np.int64]
    update: NDArray[np.int64]
    applied: NDArray[np.bool_]


def read_frequent(payloads: list[bytes], *, takes_ids: bool = True) -> tuple[Agains, QuickCommits, list[int]]:
    """The frequent records among payloads, and the numbers of those that are for the decoder.

    Without `takes_ids` these are all that carry IDs: where what they carry has any number of bytes, few are alike.
    """
    size = np.fromiter(map(len, payloads), np.int64, len(payloads))
    tag = np.frombuffer(bytes([payload[1] if len(payload) > 1 else 0 for payload in payloads]), np.uint8)
    agains = _read_agains(payloads, np.flatnonzero(tag == _AGAIN_TAG), size, takes_ids)
    is_commit = tag == _COMMIT_TAG
    found = [_read_commits(payloads, np.flatnonzero(is_commit & (size == n)), n) for n in (4, *_COMMIT_MARKS)]
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    arrangement = np.argsort(columns[0], kind="stable")
    commits = QuickCommits(*(column[arrangement] for column in columns))
    is_left = np.ones(len(payloads), np.bool_)
    is_left[agains.number] = False
    is_left[commits.number] = False
    return agains, commits, np.flatnonzero(is_left).tolist()


def _read_agains(payloads: list[bytes], number: NDArray[np.int64], size: NDArray[np.int64], takes_ids: bool) -> Agains:
    """Those of the records `number` that look as the writer writes them."""
    columns: list[tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.uint64]]] = []
    kept = []
    for num_bytes in np.unique(size[number]).tolist():
        these = number[size[number] == num_bytes]
        if num_bytes < _AGAIN.itemsize or (num_bytes > _AGAIN.itemsize and not takes_ids):
            continue
        data = np.frombuffer(b"".join([payloads[n] for n in these.tolist()]), np.uint8).reshape(-1, num_bytes)
        rows = data[:, : _AGAIN.itemsize].copy().view(_AGAIN)[:, 0]
        good, begin = _find_ids(data)
        good &= (rows["head"] == _AGAIN_HEAD) & (rows["mark"] == _UINT64)
        good &= (rows["is_next"] == _FALSE) | (rows["is_next"] == _TRUE)
        columns.append((these[good], rows["is_next"][good] == _TRUE, rows["digest"][good].astype(np.uint64)))
        if begin:
            kept.append(KeptIds(these[good], data[:, begin:] if good.all() else data[good, begin:]))
    if len(columns) == 1:
        return Agains(*columns[0], kept)
    nothing = (np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.uint64))
    number, is_next, digest = (np.concatenate(parts) for parts in zip(nothing, *columns, strict=True))
    arrangement = np.argsort(number, kind="stable")
    return Agains(number[arrangement], is_next[arrangement], digest[arrangement], kept)


def _find_ids(data: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], int]:
    """Which `Again` records, all of one length, end as they should, and where their IDs begin, 0 for none.

    Args:
        data: (k, bytes) uint8.
    """
    last, num_bytes = _AGAIN.itemsize - 1, data.shape[1]
    if num_bytes == _AGAIN.itemsize:
        return data[:, last] == _NIL, 0
    for mark, kind in _BYTES_MARKS:
        begin = last + 1 + np.dtype(kind).itemsize
        if begin <= num_bytes and (data[0, last] == mark):
            length = data[:, last + 1 : begin].copy().view(kind)[:, 0]
            return (data[:, last] == mark) & (length == num_bytes - begin), begin
    return np.zeros(data.shape[0], np.bool_), 0


def _read_commits(payloads: list[bytes], number: NDArray[np.int64], size: int) -> QuickCommits:
    mark, kind = _COMMIT_MARKS.get(size, (None, "u1"))
    fields = [("head", "u1"), ("tag", "u1"), *([("mark", "u1")] if mark else []), ("update", kind), ("applied", "u1")]
    rows = np.frombuffer(b"".join([payloads[n] for n in number.tolist()]), np.dtype(fields))
    applied, update = rows["applied"], rows["update"].astype(np.uint64)
    good = (rows["head"] == _COMMIT_HEAD) & ((applied == _FALSE) | (applied == _TRUE))
    good &= (rows["mark"] == mark) if mark else (update <= _FIXINT_MAX)
    good &= update <= _UPDATE_MAX
    return QuickCommits(number[good], update[good].astype(np.int64), (applied == _TRUE)[good])

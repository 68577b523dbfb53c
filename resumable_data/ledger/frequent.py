"""The two records that come by the million, read by the thousand: `Again` without IDs, and `Commit`.

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

_COMMIT_HEAD, _COMMIT_TAG, _FIXINT_MAX = 0x93, 4, 0x7F
_COMMIT_MARKS = {5: (0xCC, "u1"), 6: (0xCD, ">u2"), 8: (0xCE, ">u4"), 12: (0xCF, ">u8")}  # by the payload's length
_UPDATE_MAX = 1 << 61


class Agains(NamedTuple):
    """`Again` records of a batch, in order.

    Attributes:
        number: (n,) int64, which records of the batch they are.
        is_next: (n,) bool.
        digest: (n,) uint64.
    """

    number: NDArray[np.int64]
    is_next: NDArray[np.bool_]
    digest: NDArray[np.uint64]


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


def read_frequent(payloads: list[bytes]) -> tuple[Agains, QuickCommits, list[int]]:
    """The frequent records among payloads, and the numbers of those that are for the decoder."""
    size = np.fromiter(map(len, payloads), np.int64, len(payloads))
    tag = np.frombuffer(bytes([payload[1] if len(payload) > 1 else 0 for payload in payloads]), np.uint8)
    agains = _read_agains(payloads, np.flatnonzero((tag == _AGAIN_TAG) & (size == _AGAIN.itemsize)))
    is_commit = tag == _COMMIT_TAG
    found = [_read_commits(payloads, np.flatnonzero(is_commit & (size == n)), n) for n in (4, *_COMMIT_MARKS)]
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    arrangement = np.argsort(columns[0], kind="stable")
    commits = QuickCommits(*(column[arrangement] for column in columns))
    is_left = np.ones(len(payloads), np.bool_)
    is_left[agains.number] = False
    is_left[commits.number] = False
    return agains, commits, np.flatnonzero(is_left).tolist()


def _read_agains(payloads: list[bytes], number: NDArray[np.int64]) -> Agains:
    rows = np.frombuffer(b"".join([payloads[n] for n in number.tolist()]), _AGAIN)
    is_next = rows["is_next"]
    good = (rows["head"] == _AGAIN_HEAD) & (rows["mark"] == _UINT64) & (rows["ids"] == _NIL)
    good &= (is_next == _FALSE) | (is_next == _TRUE)
    return Agains(number[good], (is_next == _TRUE)[good], rows["digest"][good].astype(np.uint64))


def _read_commits(payloads: list[bytes], number: NDArray[np.int64], size: int) -> QuickCommits:
    mark, kind = _COMMIT_MARKS.get(size, (None, "u1"))
    fields = [("head", "u1"), ("tag", "u1"), *([("mark", "u1")] if mark else []), ("update", kind), ("applied", "u1")]
    rows = np.frombuffer(b"".join([payloads[n] for n in number.tolist()]), np.dtype(fields))
    applied, update = rows["applied"], rows["update"].astype(np.uint64)
    good = (rows["head"] == _COMMIT_HEAD) & ((applied == _FALSE) | (applied == _TRUE))
    good &= (rows["mark"] == mark) if mark else (update <= _FIXINT_MAX)
    good &= update <= _UPDATE_MAX
    return QuickCommits(number[good], update[good].astype(np.int64), (applied == _TRUE)[good])

"""The files of one attempt: whose they are, whether they are whole, and what one of them adds to the audit."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.audit.findings import finding
from resumable_data.audit.rank_audit import audit_rank
from resumable_data.audit.rank_result import RankResult
from resumable_data.audit.report import Bounds
from resumable_data.audit.timeline import step_stops, surviving_jumps
from resumable_data.errors import UsageError
from resumable_data.findings import Finding
from resumable_data.ledger.columns import COLUMNS
from resumable_data.ledger.frames import shown
from resumable_data.ledger.layout import rank_and_peer
from resumable_data.ledger.reader import read_rank
from resumable_data.ledger.records import key_check

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.audit.branch import Branch
    from resumable_data.audit.history import Attempt
    from resumable_data.audit.options import Options
    from resumable_data.ledger.reader import RankLog
    from resumable_data.ledger.records import Jump

_CACHE_BYTES = 48 << 20
_DELIVERY_BYTES, _COMMIT_BYTES, _LOG_BYTES = 72, 17, 2000


class Scan(NamedTuple):
    """How far one rank's file goes.

    Attributes:
        num_steps: Steps committed in sequence.
        stop: The update after the last of them.
        jumps: Where epochs were left early, up to there.
        is_there: Whether there is a file that can be used.
    """

    num_steps: int
    stop: int
    jumps: list[Jump]
    is_there: bool


class RankFiles:
    """Reads the rank files of one attempt, and keeps what is wrong with them as files.

    Args:
        attempt: The attempt.
        options: How to read.

    Attributes:
        is_whole: Whether every rank has a file, and all that were read are theirs and not torn.
    """

    def __init__(self, attempt: Attempt, options: Options) -> None:
        self._attempt = attempt
        self._files = attempt.files.ranks
        self._claim = attempt.claim
        self._options = options
        self._findings: dict[tuple[str, str], Finding] = {}
        self._unrecorded: dict[str, int] = {}  # by file, rows that a killed process may have delivered besides
        self._cache: dict[int, RankLog] = {}
        self._cached_bytes = 0
        self.is_whole = all(rank in self._files for rank in range(attempt.claim.num_replicas))
        for path in (*self._files.values(), *attempt.files.peers):
            rank = (rank_and_peer(path.name) or (0, 0))[0]
            if rank >= attempt.claim.num_replicas:
                self._report("RD110", path, f"ranks below {attempt.claim.num_replicas}", f"a file of rank {rank}")

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, each file once."""
        return list(self._findings.values())

    def read(self, rank: int) -> RankLog | None:
        """A rank's file; None where it is missing, torn before its header ends, or another's.

        Raises:
            LedgerCorruptError: It is damaged.
            UsageError: Its digests are keyed with another secret than the one given.
        """
        if rank in self._cache:
            return self._cache[rank]
        path = self._files.get(rank)
        log = None if path is None else self.read_path(path)
        if log is not None and self._cached_bytes + _size_of(log) <= _CACHE_BYTES:
            self._cache[rank] = log
            self._cached_bytes += _size_of(log)
        return log

    def read_path(self, path: Path) -> RankLog | None:
        """A rank's or peer's file; for result and errors see `read`."""
        log = read_rank(path, salvage=self._options.salvage)
        if log.damage:
            self.is_whole = False
            self._report("RD114", path, "a file without damage", shown(log.damage))
        if log.torn_bytes:
            self.is_whole = False
            self._report("RD107", path, "whole records", f"{log.torn_bytes} bytes of one at byte {log.num_bytes}")
        header, claim = log.header, self._claim
        if header is None:
            self.is_whole = False
            return None
        expected = (claim.run_id, claim.attempt, *(rank_and_peer(path.name) or (-1, -1)), claim.num_replicas)
        found = (header.run_id, header.attempt, header.rank, header.peer, header.num_replicas)
        if expected != found:
            self.is_whole = False
            self._report("RD110", path, _owner(*expected), _owner(*found))
            return None
        self._check_key(path, header.key_check)
        if header.fold_rows and not log.has_end:
            self._unrecorded[path.name] = header.fold_rows - 1
        return log

    def scan(self, rank: int) -> Scan:
        """How far a rank's file goes; nowhere where it is missing."""
        log = self.read(rank)
        stops = step_stops(log, self._claim)
        stop = int(stops[-1]) if stops.size else self._claim.start.next_index
        return Scan(stops.size, stop, surviving_jumps(log, stop) if log else [], log is not None)

    def audit(self, branch: Branch) -> list[RankResult]:
        """What each rank's file adds to the audit of a branch."""
        ranks = range(branch.claim.num_replicas)
        if self._options.jobs == 1 or len(ranks) == 1:
            return [audit_rank(self.read(rank), rank, branch) for rank in ranks]
        arguments = (self._attempt, msgspec.structs.replace(self._options, jobs=1), branch)
        with ProcessPoolExecutor(
            self._options.jobs, mp_context=get_context("spawn"), initializer=_start_worker, initargs=arguments
        ) as pool:
            size = max(1, min(64, len(ranks) // (4 * self._options.jobs)))
            parts = list(pool.map(_audit_in_worker, ranks, chunksize=size))
        for _, files in parts:
            self._findings.update(files.findings)
            self._unrecorded.update(files.unrecorded)
            self.is_whole = self.is_whole and files.is_whole
        return [result for result, _ in parts]

    def compare_peers(self) -> list[Finding]:
        """Where peers of a rank, which write files of their own, were handed something else than the rank."""
        wrong = []
        for path in self._attempt.files.peers:
            rank, peer = rank_and_peer(path.name) or (0, 0)
            own, other = self.read(rank), self.read_path(path)
            difference = (_first_difference(own, other) or _other_commit(own, other)) if own and other else ""
            if difference:
                where = f"attempt {self._claim.attempt}, rank {rank}, peer {peer}"
                expected = "the deliveries and commits of the rank's own file"
                wrong.append(finding("RD210", where, expected=expected, found=difference, attempt=self._claim.attempt))
        return wrong

    def count(self, low: int) -> Bounds:
        """A count over all files, without an upper bound where some of them are missing or torn."""
        return Bounds(low, low + sum(self._unrecorded.values()) if self.is_whole else None)

    def _check_key(self, path: Path, check: int) -> None:
        if not check:
            return
        if not self._options.key:
            self._report("RD113", path.parent, "digests that can be recomputed", "digests keyed with a secret")
        elif key_check(self._options.key) != check:
            raise UsageError(
                f"the key is not the one that {shown(path)} was written with: no digest could be recomputed. Nothing "
                "was audited; give the secret that the ledger was made with."
            )

    def _report(self, code: str, path: Path, expected: str, found: str) -> None:
        where = f"attempt {self._claim.attempt}, {shown(path.name)}"
        one = finding(code, where, expected=expected, found=found, attempt=self._claim.attempt)
        self._findings[code, where] = one


def _size_of(log: RankLog) -> int:
    """Bytes of memory that a file takes, about."""
    kept = log.num_deliveries if log.kept is not None else 0
    return _LOG_BYTES + _DELIVERY_BYTES * kept + _COMMIT_BYTES * log.commits.update.size


def _owner(run_id: str, attempt: int, rank: int, peer: int, num_replicas: int) -> str:
    return f"run {shown(run_id)}, attempt {attempt}, rank {rank} of {num_replicas}, peer {peer}"


def _first_difference(own: RankLog, other: RankLog) -> str:
    """Where two files that should say the same differ, in as far as both go; empty where they do not."""
    ours, theirs = own.all_deliveries(), other.all_deliveries()
    size = min(len(ours), len(theirs))
    ours, theirs = ours.take(slice(size)), theirs.take(slice(size))
    differs = ours.digest != theirs.digest
    for name in COLUMNS:
        differs |= getattr(ours, name) != getattr(theirs, name)
    if not differs.any():
        return ""
    first = int(np.argmax(differs))
    return (
        f"{int(theirs.count[first])} rows from position {int(theirs.start[first])} in update "
        f"{int(theirs.update[first])}, digest {int(theirs.digest[first]):016x}, in place of {int(ours.count[first])} "
        f"from {int(ours.start[first])}, digest {int(ours.digest[first]):016x}"
    )


def _other_commit(own: RankLog, other: RankLog) -> str:
    """The first commit that differs, likewise."""
    ours, theirs = own.commits, other.commits
    size = min(ours.update.size, theirs.update.size)
    differs = (ours.update[:size] != theirs.update[:size]) | (ours.applied[:size] != theirs.applied[:size])
    if not differs.any():
        return ""
    first = int(np.argmax(differs))
    words = [
        f"update {int(one.update[first])} {'applied' if one.applied[first] else 'skipped'}" for one in (theirs, ours)
    ]
    return f"{words[0]}, in place of {words[1]}"


class _FileNotes(NamedTuple):
    """What a worker found of one file; the fields are those of `RankFiles`."""

    findings: dict[tuple[str, str], Finding]
    unrecorded: dict[str, int]
    is_whole: bool


_worker: list[tuple[Attempt, Options, Branch]] = []


def _start_worker(attempt: Attempt, options: Options, branch: Branch) -> None:
    _worker[:] = [(attempt, options, branch)]


def _audit_in_worker(rank: int) -> tuple[RankResult, _FileNotes]:
    ((attempt, options, branch),) = _worker
    files = RankFiles(attempt, options)
    result = audit_rank(files.read(rank), rank, branch)
    return result, _FileNotes(files._findings, files._unrecorded, files.is_whole)

"""Every operation that the ledger does, a crash after each, and everything that the crash may leave on the disk.

`test_crashes` and `test_crashes_during_recovery` look at more than 100,000 different states together.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest

from resumable_data.cursor import Cursor, Recipe
from resumable_data.ledger import RankWriter, attempts, frames, writer
from resumable_data.order import Sequential
from tests.crash.filesystem import (
    KILL,
    MOUNTED,
    SHORT_WRITE,
    Directory,
    Disk,
    DiskPath,
    Fault,
    KilledError,
    mount,
    mounted,
)
from tests.crash.states import CrashStates, grow
from tests.crash.story import Teller
from tests.crash.sweep import Sweep, ViolationError, ledger_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable_data.ledger.records import RankRecord

ROOT = DiskPath("/jobs/run/ledger")  # of which only /jobs is there at first
NUM_RANKS = 2
START = Cursor(recipe=Recipe(order=Sequential(10_000).describe(), global_batch=24))


class Job(NamedTuple):
    """How a launch writes.

    Attributes:
        ids: As in `Ledger`.
        fold_rows: As in `Ledger`.
        rows: Of each microbatch.
        num_updates: How long it goes on.
        oversized: Whether its last microbatch is larger than what was claimed.
    """

    ids: str = "digest"
    fold_rows: int = 0
    rows: int = 6
    num_updates: int = 4
    oversized: bool = False


DIGEST = Job()
BRIEF = Job(num_updates=2)
FULL = Job(ids="full", rows=100)  # IDs that reach over sectors
FOLD = Job(fold_rows=1000)
OVERSIZED = Job(ids="full", rows=100, num_updates=0, oversized=True)


def new_disk(fault: Fault | None = None) -> Disk:
    root = Directory()
    root.entries["jobs"] = Directory()
    return Disk(root, fault)


def launch(disk: Disk, job: Job, tellers: dict[str, Teller]) -> None:
    """Claim an attempt and record some updates of all ranks; `tellers` take down by path what was recorded."""
    mount(disk)
    ledger = ledger_at(ROOT, ids=job.ids, fold_rows=job.fold_rows)
    claim = ledger.claim(START, num_replicas=NUM_RANKS, microbatch=job.rows, epochs=None, run_id="aa")
    directory = ROOT / f"attempt-{claim.attempt:06d}"
    if claim.attempt:
        disk.promise(directory / "claim", 1)
    for rank in range(NUM_RANKS):
        path = directory / f"rank-{rank:05d}.ledger"
        teller = tellers[str(path)] = Teller(fold_rows=job.fold_rows)
        teller.writer = ledger.open_rank(claim, rank=rank)
    for update in range(job.num_updates):
        for rank, (path_name, teller) in enumerate(tellers.items()):
            train(teller, update, rank, job.rows)
            if update % 2 and teller.agreed(update + 1, (update + 1) * 4 * job.rows):
                disk.promise(DiskPath(path_name), len(teller.records))
            if update % 2:
                teller.saved(update + 1)
    for path_name, teller in tellers.items():
        if job.oversized:
            teller.deliver(job.num_updates, 0, 0, stride=1, count=9 * job.rows, is_last=True)
        if teller.close():
            disk.promise(DiskPath(path_name), len(teller.records))


def train(teller: Teller, update: int, rank: int, rows: int) -> None:
    """Two microbatches and a commit, and now and then something rare."""
    first = update * 4 * rows
    if update == 1:
        teller.jump(update, first)
    if update == 2:
        teller.deliver(update, 0, first + rank, stride=2, count=rows, is_last=False)
        teller.rewind(update)
    for index in range(2):
        start = first + index * 2 * rows + rank
        if (update, index) == (2, 1):
            teller.unreadable(update, index, start)
        teller.deliver(update, index, start, stride=2, count=rows, is_last=index == 1)
    teller.commit(update, applied=update != 1)


def sweep_launch(job: Job, fault: Fault | None = None, sweep: Sweep | None = None) -> tuple[Sweep, bool]:
    """A launch, crashed after every operation; with a fault, after each promise.

    Returns:
        The sweep that looked at all that was left, and whether all that the launch recorded was acknowledged.
    """
    disk, sweep = new_disk(fault), sweep or Sweep(ROOT)
    states = CrashStates(disk.root)
    tellers: dict[str, Teller] = {}
    with mounted(disk):
        launch(disk, job, tellers)
        sweep.add(disk, tellers)
        deque(sweep.run(disk, states, random.Random(1), only_promises=fault is not None), maxlen=0)
    return sweep, all(len(one.records) == states.promises.get(path) for path, one in tellers.items())


def count_calls(job: Job, name: str = "") -> list[int]:
    """The numbers of a launch's calls that may fail, of one kind or all."""
    disk = new_disk()
    with mounted(disk):
        launch(disk, job, {})
    return [number for number, call in enumerate(disk.calls) if name in ("", call)]


@pytest.mark.parametrize(
    ("job", "num_states"), [(DIGEST, 30_000), (FULL, 45_000), (FOLD, 20_000)], ids=["digest", "full", "fold"]
)
def test_crashes(job: Job, num_states: int) -> None:
    """After a crash anywhere, what was acknowledged is read back, and what is read back was recorded."""
    sweep, is_complete = sweep_launch(job)
    assert is_complete
    assert sweep.num_states > num_states


def test_crashes_during_recovery() -> None:
    """The next launch can claim and record whatever a crash left, and the same promises hold when it crashes too."""
    first, sweep, rng = new_disk(), Sweep(ROOT), random.Random(2)
    tellers: dict[str, Teller] = {}
    states = CrashStates(first.root)
    with mounted(first):
        launch(first, DIGEST, tellers)
        sweep.add(first, tellers)
        left = {}
        for tree in sweep.run(first, states, rng):
            left[tuple(path for path, _ in tree), len(states.promises)] = (tree, dict(states.promises))
        num_first = sweep.num_states
        for tree, promises in left.values():
            recover(sweep, grow(tree), promises, rng)
    assert sweep.num_states - num_first > 20_000


def recover(sweep: Sweep, root: Directory, promises: dict[str, int], rng: random.Random) -> None:
    """One more launch on what a crash left, crashed after every operation."""
    disk, files = Disk(root), dict(sweep.files)
    tellers: dict[str, Teller] = {}
    states = CrashStates(root)
    states.promises |= promises
    launch(disk, Job(num_updates=1), tellers)
    assert not any(teller.writer.broken for teller in tellers.values())
    sweep.add(disk, tellers)
    deque(sweep.run(disk, states, rng), maxlen=0)
    sweep.files = files


def test_killed_then_crashed() -> None:
    """What a killed process did not sync, and the next one goes on from, is lost no more after a crash than its own."""
    calls = count_calls(BRIEF)
    for call in [*calls[:24], *calls[24::4]]:
        disk, sweep = new_disk(Fault(call, KILL)), Sweep(ROOT)
        tellers: dict[str, Teller] = {}
        second: dict[str, Teller] = {}
        states = CrashStates(disk.root)
        with mounted(disk):
            with suppress(KilledError):
                launch(disk, BRIEF, tellers)
            for teller in tellers.values():
                teller.abandon()
            sweep.add(disk, tellers)
            disk.restart()
            launch(disk, Job(num_updates=1), second)
            assert not any(teller.writer.broken for teller in second.values())
            sweep.add(disk, second)
            deque(sweep.run(disk, states, random.Random(3), only_promises=True), maxlen=0)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, SHORT_WRITE], ids=["EIO", "ENOSPC", "short write"])
def test_errors_then_crashed(error: int, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever call fails, training goes on, the trouble is logged, and what was acknowledged survives a crash."""
    sweep = None
    for call in count_calls(BRIEF, "write" if error == SHORT_WRITE else ""):
        caplog.clear()
        sweep, is_complete = sweep_launch(BRIEF, Fault(call, error), sweep)
        assert caplog.records or is_complete


def without_fsync(patch: pytest.MonkeyPatch) -> None:
    """A writer that does not wait for its files."""
    patch.setattr(Disk, "fdatasync", lambda disk, descriptor: None)
    sweep_launch(DIGEST)


def without_directory_fsync(patch: pytest.MonkeyPatch) -> None:
    """A writer that waits for its files, and not for their names."""
    for module in (attempts, writer):
        patch.setattr(module, "sync_directory", lambda path: None)
    sweep_launch(DIGEST)


def without_checksum(patch: pytest.MonkeyPatch) -> None:
    """A writer and a reader without checksums."""
    for module in (attempts, frames, writer):
        patch.setattr(module, "chain_checksum", lambda payload, chain=0: 0)
    patch.setattr(frames, "FRAME_OVERHEAD_BYTES", 1 << 40)  # nothing is searched by checksum either
    sweep_launch(DIGEST)


class UnboundedWriter(RankWriter):
    """Writes records of any length."""

    def _write(self, record: RankRecord) -> None:
        self._payload_bytes_max = 1 << 31
        super()._write(record)


def without_length_bound(patch: pytest.MonkeyPatch) -> None:
    """A writer that does not mind the length that its header allows."""
    patch.setattr(attempts, "RankWriter", UnboundedWriter)
    sweep_launch(OVERSIZED)


class RetryingWriter(RankWriter):
    """Tries a failed fdatasync once more."""

    def sync(self) -> None:
        with suppress(OSError):
            MOUNTED.fdatasync(self._descriptor)
        super().sync()


def with_retry(patch: pytest.MonkeyPatch) -> None:
    """A writer that takes the second fdatasync's word."""
    patch.setattr(attempts, "RankWriter", RetryingWriter)
    sweep_launch(DIGEST, Fault(count_calls(DIGEST, "sync")[6], errno.EIO))


@pytest.mark.parametrize(
    ("breaks", "violation"),
    [
        (without_fsync, "were acknowledged"),
        (without_directory_fsync, "were acknowledged"),
        (without_checksum, "never written"),
        (without_length_bound, "found a length of 1824"),
        (with_retry, "were acknowledged"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_broken_writers_are_caught(
    breaks: Callable[[pytest.MonkeyPatch], None], violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep finds each of the mistakes that it is there for, and nothing where they are not made."""
    with pytest.raises(ViolationError, match=violation):
        breaks(monkeypatch)


def test_an_oversized_microbatch_breaks_no_promise() -> None:
    """A record that the header does not allow ends the ledger, and spoils nothing that was acknowledged."""
    _, is_complete = sweep_launch(OVERSIZED)
    assert not is_complete

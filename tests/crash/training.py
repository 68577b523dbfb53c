"""A small training run with a ledger, in a process of its own that may be killed, stopped or traced.

What the run knows of itself it notes in a diary: a file mapped into memory, so that nothing but the ledger makes system
calls, and that a kill cannot lose.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import resource
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from resumable_data.audit import audit_ledger
from resumable_data.cursor import Cursor
from resumable_data.errors import ResumableDataError
from resumable_data.ledger import Ledger
from resumable_data.ledger.reader import read_rank
from resumable_data.loader import ResumableLoader
from tests.distributed import ranks  # whose server has torch imported

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

NUM_UPDATES, FIRST, LAST = 10, 4, 8
"""The run's first launch goes as far as update `FIRST`, the one that something happens to as far as `LAST`."""

_PR_SET_PTRACER, _ANYBODY = 0x59616D61, ctypes.c_ulong(-1)
_DIARY_BYTES = 1 << 16

assert ranks.PRELOADED
_context = get_context("forkserver")


class Diary(msgspec.Struct):
    """What a run knows of itself.

    Attributes:
        updates: Updates committed.
        agreed: The cursor, as JSON, when the ranks last agreed: what its checkpoint holds.
        num_errors: What had been logged by then.
        outcome: ``"finished"``, or the kind of error that ended it; empty where it was killed.
        error: The error's text.
        is_ours: Whether it is one of the package's.
    """

    updates: int = 0
    agreed: str = ""
    num_errors: int = 0
    outcome: str = ""
    error: str = ""
    is_ours: bool = False


def make_loader(root: Path, *, rows: int = 2, **options: Any) -> ResumableLoader:
    """The run's loader: two microbatches of so many rows in each update; `options` are those of its ledger."""
    dataset = torch.utils.data.TensorDataset(torch.arange(2 * rows * NUM_UPDATES))
    ledger = Ledger(root / "ledger", **options)
    return ResumableLoader(dataset, global_batch=2 * rows, microbatch=rows, epochs=1, ledger=ledger)


def train(loader: ResumableLoader, stop: int) -> ResumableLoader:
    """Commit updates up to `stop`."""
    for item in loader:
        if item.is_last:
            loader.commit()
            if loader.cursor.updates == stop:
                break
    return loader


def resume(root: Path, agreed: str, stop: int = NUM_UPDATES, **options: Any) -> Cursor:
    """A launch in this process, from a checkpoint, where there is one, up to update `stop`; its own checkpoint."""
    with make_loader(root, **options) as loader:
        if agreed:
            loader.load_state_dict(Cursor.from_json(agreed))
        train(loader, stop).check_agreement()
        return loader.cursor


def begin(root: Path, **options: Any) -> str:
    """The run's first launch; its checkpoint, as JSON."""
    root.mkdir()
    return resume(root, "", FIRST, **options).to_json().decode()


def check(root: Path, agreed: str, *, num_errors: int, **options: Any) -> None:
    """Go on after the second launch, to the end, and audit: what was synced is there, and what is not is not proven.

    Args:
        root: Where the ledger is.
        agreed: The checkpoint, as JSON.
        num_errors: Errors that had been logged before it.
        **options: As those of `make_loader`.
    """
    checkpoint = Cursor.from_json(agreed)
    path = root / "ledger" / "attempt-000002" / "rank-00000.ledger"
    committed = read_rank(path).commits.update.tolist() if path.exists() else []
    is_whole = set(committed) >= set(range(FIRST, checkpoint.updates))
    assert is_whole or num_errors, "what was synced is not there"
    assert resume(root, agreed, **options).updates == NUM_UPDATES
    report = audit_ledger(root / "ledger")
    # a launch without an attempt is proven by the digest in its checkpoint, which the next claim holds
    assert (report.verdict == "proven") == (is_whole or checkpoint.attempt == 0), report.to_text()
    assert report.verdict in ("proven", "unproven"), report.to_text()
    assert not is_whole or report.samples == checkpoint.recipe.global_batch * NUM_UPDATES


class Job:
    """A launch in a process of its own, which waits before its first update until it is told to `go`.

    Args:
        root: Where the ledger is.
        agreed: The checkpoint it starts at, empty for none.
        stop: The update it goes up to; every second one there is an agreement.
        file_bytes_max: No file can be made larger.
        pause_at: The update in which it says so, and waits to be told to `go` on.
        **options: Of its ledger.
    """

    def __init__(
        self, root: Path, agreed: str, stop: int, *, file_bytes_max: int = 0, pause_at: int = -1, **options: Any
    ) -> None:
        self._diary = root / "diary"
        self._diary.write_bytes(bytes(_DIARY_BYTES))
        self._connection, theirs = _context.Pipe()
        limits = (file_bytes_max, pause_at)
        self.process: BaseProcess = _context.Process(
            target=_run, args=(root, agreed, stop, limits, options, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self.pid: int = self._connection.recv()

    def run(self) -> Diary:
        """Let it begin, and wait for its end."""
        self.go()
        return self.wait()

    def go(self) -> None:
        """Let it begin."""
        self._connection.send("go")

    def wait_for_pause(self) -> None:
        """Wait until it has come to `pause_at`."""
        assert self._connection.recv() == "paused"

    def wait(self) -> Diary:
        """Its diary, once it has ended."""
        self.process.join(60)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"the job never ended; its diary says {self.diary()}")
        return self.diary()

    def diary(self) -> Diary:
        """Its diary so far."""
        return msgspec.json.decode(self._diary.read_bytes().rstrip(b"\0") or b"{}", type=Diary)


class Noter(logging.Handler):
    """Counts what is logged, and writes nothing."""

    num_errors = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.num_errors += 1


def _run(
    root: Path, agreed: str, stop: int, limits: tuple[int, int], options: dict[str, Any], connection: Connection
) -> None:
    """What the process does."""
    file_bytes_max, pause_at = limits
    with open(root / "diary", "r+b") as file:
        memory = mmap.mmap(file.fileno(), _DIARY_BYTES)
    diary, noter = Diary(agreed=agreed), Noter()
    logging.getLogger("resumable_data").addHandler(noter)
    loader = make_loader(root, **options)
    if agreed:
        loader.load_state_dict(Cursor.from_json(agreed))

    def note() -> None:
        data = msgspec.json.encode(diary)
        memory[:] = data.ljust(_DIARY_BYTES, b"\0")

    note()
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)  # where only ancestors may trace
    connection.send(os.getpid())
    connection.recv()
    if file_bytes_max:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, resource.RLIM_INFINITY))
    try:
        for item in loader:
            if item.update == pause_at and item.index == 0:
                connection.send("paused")
                connection.recv()
            if not item.is_last:
                continue
            loader.commit()
            diary.updates = loader.cursor.updates
            if diary.updates % 2 == 0:
                loader.check_agreement()
                diary.agreed, diary.num_errors = loader.cursor.to_json().decode(), noter.num_errors
            note()
            if diary.updates == stop:
                break
        loader.close()
        diary.outcome = "finished"
    except Exception as error:
        diary.outcome, diary.error = type(error).__name__, str(error)
        diary.is_ours = isinstance(error, ResumableDataError)
    note()
    os._exit(0)

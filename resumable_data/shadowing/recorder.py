"""Writing down what a loop was handed; whatever goes wrong, the loop goes on."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.ledger.frames import SHADOW_KIND, chain_checksum, make_frame, make_head, shown
from resumable_data.shadowing.launch import this_launch
from resumable_data.shadowing.records import (
    PAYLOAD_BYTES_MAX,
    Begin,
    Header,
    Record,
    Saved,
    Stopped,
    encode_record,
    file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable_data.shadowing.launch import Launch

_logger = logging.getLogger(__name__)
_CLOSED = -1


class Recorder:
    """Appends to one file, which is open until the process ends; trouble is logged once and ends it.

    The file is made at the first record, when the process group is there, and anew in a process that was forked.

    Args:
        path: The directory.
        rank: The rank; of the process group when None.
        num_replicas: Number of ranks; of the process group when None.
    """

    def __init__(self, path: Path, rank: int | None, num_replicas: int | None) -> None:
        self._path = path
        self._arguments = rank, num_replicas
        self._descriptor = _CLOSED
        self._chain = 0
        self._process = 0
        self._has_begun = False
        self.launch: Launch | None = None
        self.is_stopped = False
        self.num_begun = 0
        """Iterations begun."""

    def record(self, make: Callable[[], Record]) -> None:
        """Append what `make` gives; never raises an `Exception`."""
        if self.is_stopped and self._process == os.getpid():
            return
        try:
            self._open()
            record = make()
            if self._fits(record):
                self._append(encode_record(record))
        except Exception as error:  # whatever it is, it must not be what ends somebody's training
            self.stop(f"{type(error).__name__}: {error}")

    def begin(self, describe: Callable[[int], Begin]) -> None:
        """Append the begin of an iteration; `describe` is given the number of ranks."""
        self.num_begun += 1

        def make() -> Begin:
            assert self.launch is not None
            return describe(self.launch.num_replicas)

        self.record(make)

    def stop(self, reason: str) -> None:
        """Write down why shadowing stops, if that is possible, log it, and write nothing more."""
        self.is_stopped = True
        self._process = os.getpid()
        try:
            if self._descriptor != _CLOSED:
                self._append(encode_record(Stopped(shown(reason)[:256])))
        except Exception:  # the disk is full, say: then the file ends here
            _logger.debug("no record of the end could be written", exc_info=True)
        self._close()
        _logger.error(
            "shadowing in %s stopped: %s. What is read from here on is not recorded, and its audit will say so. "
            "Training goes on.",
            shown(self._path),
            shown(reason),
        )

    def _fits(self, record: Record) -> bool:
        """Whether a record has a place in the file: a save before the first iteration has none."""
        if isinstance(record, Begin):
            self._has_begun = True
        elif not self._has_begun and not isinstance(record, Saved):
            raise RuntimeError("an iterator that was made in another process")
        return self._has_begun

    def _open(self) -> None:
        if self._process == os.getpid():
            return
        self._close()  # a copy of what the parent process has open
        self._process = os.getpid()
        self.is_stopped = self._has_begun = False
        self._path.mkdir(parents=True, exist_ok=True)
        self.launch = launch = this_launch(*self._arguments)
        start_ns = time.time_ns()
        header = Header(launch.token[:256], launch.rank, launch.num_replicas, start_ns, _package_version())
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._path / file_name(launch.rank, start_ns), flags, 0o666)
        head = make_head(SHADOW_KIND)
        frame, self._chain = make_frame(encode_record(header), chain_checksum(head))
        self._write(head + frame)

    def _append(self, payload: bytes) -> None:
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a record of {len(payload)} bytes, where {PAYLOAD_BYTES_MAX} are allowed")
        frame, self._chain = make_frame(payload, self._chain)
        self._write(frame)

    def _write(self, data: bytes) -> None:
        written = os.write(self._descriptor, data)
        if written != len(data):
            self._close()  # what comes after a part of a frame could not be read
            raise OSError(f"only {written} of {len(data)} bytes were written")

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)


_RECORDERS: dict[tuple[Path, int | None], Recorder] = {}


def recorder_at(path: Path, rank: int | None, num_replicas: int | None) -> Recorder:
    """The recorder of a directory and a rank in this process: a script may make its loader anew for each epoch."""
    key = path.absolute(), rank
    if key not in _RECORDERS:
        _RECORDERS[key] = Recorder(path, rank, num_replicas)
    return _RECORDERS[key]


def _package_version() -> str:
    from resumable_data import __version__

    return __version__

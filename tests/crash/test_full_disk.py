"""Files that cannot grow: writes that are cut short at any byte, and a disk that is full."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest

from tests.crash.training import LAST, Job, Noter, begin, check, resume

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

pytestmark = pytest.mark.slow

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_PAGE_BYTES, _NUM_PAGES = 4096, 16


def test_writes_cut_short_at_every_byte(tmp_path: Path) -> None:
    """Whatever part of a record the kernel takes, training goes on, and what comes before the record is there."""
    agreed = begin(tmp_path / "first")
    root = shutil.copytree(tmp_path / "first", tmp_path / "second")
    assert Job(root, agreed, LAST).run().num_errors == 0
    directory = root / "ledger" / "attempt-000002"
    claim, rank = ((directory / name).stat().st_size for name in ("claim", "rank-00000.ledger"))
    assert claim < rank
    for limit in [1, 15, 16, claim - 1, *range(claim, rank)]:
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "first", root)
        diary = Job(root, agreed, LAST, file_bytes_max=limit).run()
        assert (diary.outcome, diary.updates) == ("finished", LAST), (limit, diary)
        check(root, diary.agreed, num_errors=diary.num_errors)


def test_a_full_disk(tmp_path: Path) -> None:
    """On a disk that is full after any number of pages training goes on, and the audit proves what was written."""
    context = get_context("forkserver")
    connection, theirs = context.Pipe()
    process = context.Process(target=_fill_disks, args=(tmp_path, theirs))
    process.start()
    theirs.close()
    refused: str = connection.recv()
    if refused:
        pytest.skip(f"no tmpfs can be mounted here, as root or in a namespace of its own: {refused}")
    num_errors = [connection.recv() for _ in range(_NUM_PAGES)]
    process.join()
    assert process.exitcode == 0
    assert num_errors[0] > 0
    assert num_errors[-1] == 0


def _fill_disks(path: Path, connection: Connection) -> None:
    """In a process with mounts of its own: train on a disk with 0, 1, ... pages left."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespaces = _NEW_MOUNTS if os.geteuid() == 0 else _NEW_USER | _NEW_MOUNTS
    for num_free in range(_NUM_PAGES):
        root = path / str(num_free)
        root.mkdir()
        if num_free == 0 and libc.unshare(namespaces):
            connection.send(f"unshare: {os.strerror(ctypes.get_errno())}")
            return
        options = f"size={_PAGE_BYTES * 2 * _NUM_PAGES}".encode()
        if libc.mount(b"tmpfs", str(root).encode(), b"tmpfs", 0, options):
            connection.send(f"mount: {os.strerror(ctypes.get_errno())}")
            return
        if num_free == 0:
            connection.send("")
        connection.send(_train_on_full_disk(root, num_free))


def _train_on_full_disk(disk: Path, num_free: int) -> int:
    """Train with so many pages left; how many errors were logged."""
    options = {"ids": "full", "rows": 1000}
    noter = Noter()
    logging.getLogger("resumable_data").addHandler(noter)
    agreed = begin(disk / "run", **options)
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        free = os.statvfs(disk).f_bfree
        file.write(bytes(_PAGE_BYTES * (free - num_free)))
    checkpoint = resume(disk / "run", agreed, LAST, **options)
    filler.unlink()
    logging.getLogger("resumable_data").removeHandler(noter)
    check(disk / "run", checkpoint.to_json().decode(), num_errors=noter.num_errors, **options)
    return noter.num_errors

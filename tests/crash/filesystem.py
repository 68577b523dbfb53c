"""A disk in memory, on which the ledger works as on a real one, and which remembers every operation.

`mounted` puts it in the place of `os` in the ledger's modules. What a crash may leave of it is said by
`tests.crash.states`.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from contextlib import contextmanager
from itertools import count
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from resumable_data.ledger import attempts, frames, layout, writer

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = count(1)
_DESCRIPTORS = 1 << 30  # none of the kernel's

SHORT_WRITE = -1
KILL = -2


class KilledError(BaseException):
    """The process is dead: nothing that it would do from here on happens."""


class File:
    """A file, whatever its names are.

    Args:
        data: Its content.
        is_damaged: Whether a crash left it with less than its beginning.
    """

    def __init__(self, data: bytes = b"", *, is_damaged: bool = False) -> None:
        self.data = bytearray(data)
        self.is_damaged = is_damaged


class Directory:
    """A directory."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}


Node = File | Directory


class Write(NamedTuple):
    """Bytes appended to a file, and whether they are all that were to be."""

    file: File
    data: bytes
    is_whole: bool


class Sync(NamedTuple):
    """An fsync or fdatasync, and whether it succeeded."""

    node: Node
    is_ok: bool


class Change(NamedTuple):
    """A name in a directory: what it stands for now, None where it was removed."""

    directory: Directory
    name: str
    node: Node | None


class Promise(NamedTuple):
    """No operation: from here on a file is relied on, because a call that says so returned.

    Attributes:
        path: The file.
        num_records: How many of its records must be readable, whatever happens.
    """

    path: str
    num_records: int


Operation = Write | Sync | Change | Promise


class Fault(NamedTuple):
    """What goes wrong: the call with this number, counted from 0 over all calls of this disk, gives an error.

    Attributes:
        call: Its number.
        error: An errno; or `SHORT_WRITE`: half of the data is written, and no error is given; or `KILL`.
    """

    call: int
    error: int


class Disk:
    """What the ledger calls of `os`, over a tree in memory.

    Args:
        root: What is on the disk.
        fault: What goes wrong.

    Attributes:
        log: What was done, in order.
        calls: Names of the calls that may fail, so far.
        opened: What descriptors stand for.
    """

    def __init__(self, root: Directory, fault: Fault | None = None) -> None:
        self.root = root
        self.log: list[Operation] = []
        self.calls: list[str] = []
        self._fault = fault
        self._is_dead = False
        self.opened: dict[int, Node] = {}

    def find(self, path: PurePosixPath) -> Node | None:
        """What lies at a path."""
        node: Node | None = self.root
        for name in path.parts[1:]:
            node = node.entries.get(name) if isinstance(node, Directory) else None
        return node

    def open(self, path: PurePosixPath, flags: int, mode: int = 0o777) -> int:
        """As os.open."""
        node = self.find(path)
        if flags & os.O_CREAT:
            self._begin("create")
            if node is not None:
                raise _error(errno.EEXIST)
            node = File()
            self._change(path, node)
        if node is None:
            raise _error(errno.ENOENT)
        descriptor = _DESCRIPTORS + len(self.opened)
        self.opened[descriptor] = node
        return descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        """As os.write, to a file opened for appending."""
        file, is_short = self.opened[descriptor], self._begin("write")
        assert isinstance(file, File)
        data = bytes(data)[: len(data) // 2 if is_short else None]
        file.data += data
        self.log.append(Write(file, data, not is_short))
        return len(data)

    def fsync(self, descriptor: int) -> None:
        """As os.fsync, of a file or directory."""
        node = self.opened[descriptor]
        try:
            self._begin("sync")
        except OSError:
            self.log.append(Sync(node, is_ok=False))
            raise
        self.log.append(Sync(node, is_ok=True))

    fdatasync = fsync

    def link(self, source: PurePosixPath, target: PurePosixPath) -> None:
        """As os.link."""
        self._begin("link")
        if self.find(target) is not None:
            raise _error(errno.EEXIST)
        self._change(target, self.find(source))

    def unlink(self, path: PurePosixPath) -> None:
        """As os.unlink."""
        self._begin("unlink")
        self._change(path, None)

    def mkdir(self, path: PurePosixPath) -> None:
        """As os.mkdir."""
        self._begin("mkdir")
        if self.find(path) is not None:
            raise _error(errno.EEXIST)
        self._change(path, Directory())

    def close(self, descriptor: int) -> None:
        """As os.close: the descriptor is gone, also where there is an error."""
        if not self._is_dead:
            assert descriptor in self.opened
            self._begin("close")

    def fstat(self, descriptor: int) -> SimpleNamespace:
        """As os.fstat, for regular files."""
        node = self.opened[descriptor]
        assert isinstance(node, File)
        return SimpleNamespace(st_mode=stat.S_IFREG | 0o644, st_size=len(node.data))

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        """As os.pread."""
        node = self.opened[descriptor]
        assert isinstance(node, File)
        return bytes(node.data[offset : offset + size])

    def open_reader(self, descriptor: int, *_args: Any, **_options: Any) -> io.BytesIO:
        """As the builtin open, of a descriptor."""
        node = self.opened[descriptor]
        assert isinstance(node, File)
        return _Reader(bytes(node.data), descriptor)

    @contextmanager
    def scandir(self, path: PurePosixPath) -> Iterator[list[_Entry]]:
        """As os.scandir."""
        node = self.find(path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOENT)
        yield [_Entry(name, isinstance(one, Directory)) for name, one in node.entries.items()]

    def urandom(self, size: int) -> bytes:
        """As os.urandom, and never the same twice."""
        return next(_NUMBERS).to_bytes(size, "little")

    def restart(self) -> None:
        """Another process goes on with the disk as the killed one saw it."""
        self._is_dead, self._fault = False, None

    def promise(self, path: PurePosixPath, num_records: int) -> None:
        """Note in the log what is relied on from here on."""
        self.log.append(Promise(str(path), num_records))

    def _begin(self, name: str) -> bool:
        """Count a call that may fail; whether it writes only half."""
        fault, number = self._fault, len(self.calls)
        self.calls.append(name)
        if self._is_dead or (fault and fault == (number, KILL)):
            self._is_dead = True
            raise KilledError
        if fault is None or fault.call != number:
            return False
        if fault.error != SHORT_WRITE:
            raise _error(fault.error)
        return True

    def _change(self, path: PurePosixPath, node: Node | None) -> None:
        directory = self.find(path.parent)
        if not isinstance(directory, Directory):
            raise _error(errno.ENOENT)
        if node is None:
            del directory.entries[path.name]
        else:
            directory.entries[path.name] = node
        self.log.append(Change(directory, path.name, node))


class _Reader(io.BytesIO):
    def __init__(self, data: bytes, descriptor: int) -> None:
        super().__init__(data)
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


class _Entry(NamedTuple):
    """As os.DirEntry."""

    name: str
    is_directory: bool

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        return self.is_directory

    def is_file(self, *, follow_symlinks: bool) -> bool:
        return not self.is_directory

    def is_symlink(self) -> bool:
        return False


class _Os:
    """In place of the module `os`: what the mounted disk has comes from there, constants from the real one."""

    disk: Disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name, None) or getattr(os, name)


MOUNTED = _Os()


class DiskPath(PurePosixPath):
    """What the ledger calls of pathlib.Path, on the mounted disk."""

    def exists(self) -> bool:
        """As Path.exists."""
        return MOUNTED.disk.find(self) is not None

    def is_dir(self) -> bool:
        """As Path.is_dir."""
        return isinstance(MOUNTED.disk.find(self), Directory)

    def is_symlink(self) -> bool:
        """As Path.is_symlink."""
        return False

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """As Path.mkdir."""
        if parents and not self.parent.exists():
            self.parent.mkdir(parents=True, exist_ok=True)
        if not (exist_ok and self.is_dir()):
            MOUNTED.disk.mkdir(self)


def mount(disk: Disk) -> None:
    """Mount another disk, inside `mounted`."""
    MOUNTED.disk = disk


@contextmanager
def mounted(disk: Disk) -> Iterator[None]:
    """The ledger's modules work on `disk`."""
    with pytest.MonkeyPatch.context() as patch:
        mount(disk)
        for module in (attempts, frames, layout, writer):
            patch.setattr(module, "os", MOUNTED)
        patch.setattr(
            frames, "open", lambda *args, **options: MOUNTED.disk.open_reader(*args, **options), raising=False
        )
        yield


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))

"""Where a process can die in a save: before each file operation and each talk between processes, and inside a write.

A save is first watched, which gives its points in order; then it is run again for each of them, and dies there.
"""

from __future__ import annotations

import io
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystem

from resumable_data.checkpoint.manifest import MANIFEST_NAME
from resumable_data.checkpoint.retention import DELETED_NAME
from resumable_data.checkpoint.run_manifest import RUN_MANIFEST_NAME

TALKS = ("all_gather_into_tensor", "all_gather_single", "gather_object", "scatter_object_list", "broadcast_object_list")
"""Those of torch.distributed's collectives that a save uses."""
RETURNED = "returned"
"""The point after a save that was finished."""


@dataclass(frozen=True)
class Point:
    """Right before a process does something for the n-th time.

    Attributes:
        rank: Of the process.
        name: What it does: ``"rename manifest"``.
        count: How often it did so before.
        inside: Half of what is to be written is.
    """

    rank: int
    name: str
    count: int
    inside: bool = False

    @property
    def stage(self) -> str:
        """What trials are counted by."""
        return f"inside {self.name}" if self.inside else self.name


class Watch:
    """Names what a process does in a save to `path`, and may kill it there.

    Args:
        path: The checkpoint.
        death: Where to die; nowhere where None.
        pids: Who dies: all processes of the job, or this one.
    """

    def __init__(self, path: Path, death: Point | None = None, pids: tuple[int, ...] = ()) -> None:
        self._path, self._death, self._pids = path, death, pids
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._last = "nothing"
        self.points: list[Point] = []

    def reach(self, name: str, write_half: Callable[[], object] | None = None) -> None:
        """This process is about to do something; with a function that does half of it where it can be halved."""
        with self._lock:
            point = Point(dist.get_rank(), name, self._counts[name])
            self._counts[name] += 1
            self.points.append(point)
        if self._death is not None and (point.name, point.count) == (self._death.name, self._death.count):
            if self._death.inside:
                assert write_half is not None
                write_half()
            kill(self._pids)

    def talk(self, _: Any) -> None:
        """Processes tell each other something; what they did before says what it is about."""
        self.reach(f"talk after {self._last}")

    def touch(self, verb: str, path: Path, write_half: Callable[[], object] | None = None) -> None:
        """Something is done with a file or directory of this checkpoint, or of an older one."""
        thing = "root" if path == self._path.parent else kind_of(path)
        if thing != "root" and self._path not in (path, path.parent):
            thing = f"old {thing}"
        self._last = thing
        self.reach(f"{verb} {thing}", write_half)

    def is_ours(self, path: Path) -> bool:
        """Whether it is the directory of checkpoints, or in it."""
        return self._path.parent in (path, *path.parents)


def kill(pids: tuple[int, ...]) -> None:
    """End processes at once, this one last."""
    for pid in (*(one for one in pids if one != os.getpid()), os.getpid()):
        os.kill(pid, signal.SIGKILL)
    time.sleep(60)


def kind_of(path: Path) -> str:
    """What a path is to a save."""
    if path.suffix == ".distcp":
        return "data"
    if path.name.startswith(".metadata"):
        return "metadata"
    if path.name == DELETED_NAME:
        return "deletion mark"
    if RUN_MANIFEST_NAME in path.name:
        return "run manifest"
    return "manifest" if MANIFEST_NAME in path.name else "directory"


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Tell the watch what this process does."""
    with ExitStack() as stack:
        for verb in ("mkdir", "rename", "unlink", "rmdir"):
            stack.enter_context(_patched_os(verb, watch, lambda path, *_, **__: Path(path)))
        stack.enter_context(_patched_os("fsync", watch, _path_of))
        stack.enter_context(_patched_os("write", watch, _path_of))
        stack.enter_context(patch.object(FileSystem, "create_stream", _make_stream(watch)))
        for name in TALKS:
            if hasattr(dist, name):
                stack.enter_context(_before(dist, name, watch.talk))
        yield


def _path_of(descriptor: int, *_: Any) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


@contextmanager
def _before(module: Any, name: str, act: Callable[..., None]) -> Iterator[None]:
    original = getattr(module, name)

    def replaced(*args: Any, **arguments: Any) -> Any:
        act(args)
        return original(*args, **arguments)

    with patch.object(module, name, replaced):
        yield


@contextmanager
def _patched_os(verb: str, watch: Watch, path_of: Callable[..., Path]) -> Iterator[None]:
    original = getattr(os, verb)

    def act(args: Any) -> None:
        path = path_of(*args)
        if watch.is_ours(path):
            half = (lambda: original(args[0], args[1][: len(args[1]) // 2])) if verb == "write" else None
            watch.touch(verb, path, half)

    with _before(os, verb, act):
        yield


def _make_stream(watch: Watch) -> Any:
    """In place of ``FileSystem.create_stream``: a file without a buffer, so that a crash leaves what was written."""

    class File(io.FileIO):
        def write(self, data: Any, /) -> int:
            view = memoryview(data).cast("B")
            path = Path(os.fsdecode(self.name)) if not isinstance(self.name, int) else _path_of(self.name)
            watch.touch("write", path, lambda: super(File, self).write(view[: len(view) // 2]))
            return super().write(view)

    @contextmanager
    def create_stream(_: FileSystem, path: str | os.PathLike[str], mode: str) -> Iterator[io.FileIO]:
        watch.touch("open", Path(path))
        with File(path, mode) as stream:
            yield stream

    return create_stream

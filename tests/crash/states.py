"""What a crash may leave on a disk, after any number of the operations that were done to it.

What was synced is there, with its content. Of all else anything may be there:

* names that were given or removed since their directory was synced: each for itself, or not;
* bytes written since the file was synced: cut at any byte; zeros from any place on, up to any size that the file had;
  or later writes, and zeros in place of earlier ones. Each file for itself;
* after a sync of a file that failed, what should have been synced: a later sync that succeeds does not bring it back,
  since the kernel may have dropped it.
"""

from __future__ import annotations

from itertools import chain, combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tests.crash.filesystem import Change, Directory, File, Node, Operation, Promise, Sync, Write

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

SECTOR_BYTES = 512
"""Disks write whole sectors, so within one that was written nothing is lost."""

_CHANGES_MAX = 7  # directory entries in the open whose every combination is tried
_PLACES_MAX = 14
_JOINT = 24


class Remains(NamedTuple):
    """What is left of a file.

    Attributes:
        content: Its bytes.
        is_torn: Whether it lost nothing but its end, as kills and crashes of real disks have it: cut, or zeros from
            the border of a write or a sector on. Never to be taken for damage.
    """

    content: bytes
    is_torn: bool


Tree = tuple[tuple[str, Remains | None], ...]  # paths in order; None for a directory


class FileHistory:
    """What of a file is on the disk for sure, and what may be."""

    def __init__(self, file: File) -> None:
        self.data = data = bytes(file.data)
        self._is_torn = not file.is_damaged
        self.synced = len(data)
        self.borders: list[int] = []
        self.doubtful: list[tuple[int, int]] = []
        self._is_whole = True
        self._remains: list[Remains] = []

    def write(self, data: bytes, *, is_whole: bool) -> None:
        """Take down what was appended; what follows on a write that was cut short belongs to it."""
        if self._is_whole:
            self.borders.append(len(self.data))
        self.data += data
        self._is_whole = is_whole
        self._remains = []

    def sync(self, *, is_ok: bool) -> None:
        """Take down a sync; one that failed leaves what it should have synced in doubt for good."""
        if not is_ok:
            self.doubtful.append((self.synced, len(self.data)))
        self.synced = len(self.data) if is_ok else self.synced
        self.borders = [] if is_ok else self.borders
        self._remains = []

    def remains(self) -> list[Remains]:
        """All that may be left of it: first the least, last all of it."""
        self._remains = self._remains or list(dict.fromkeys(self._list()))
        return self._remains

    def _list(self) -> Iterator[Remains]:
        data, size = self.data, len(self.data)
        for start, stop in self.doubtful:
            # dropped by the kernel: zeros in its place, or nothing where nothing else followed
            yield Remains(data[:start] + bytes(min(stop, size) - start) + data[stop:], is_torn=False)
            if stop == size:
                yield Remains(data[:start], is_torn=True)
        for cut in range(self.synced, size):
            yield Remains(data[:cut], is_torn=True)
        yield from self._with_zeros()
        yield Remains(data, is_torn=self._is_torn)

    def _with_zeros(self) -> Iterator[Remains]:
        data, size = self.data, len(self.data)
        whole = self._whole_places()
        middles = [(a + b) // 2 for a, b in pairwise([*self.borders, size])]
        ends = sorted({*self.borders[1:], *(end for end in middles if end > self.synced), size})[-_PLACES_MAX:]
        for start in sorted({*whole, *(place for place in middles if place > self.synced)}):
            for stop in ends:
                if start < stop:
                    yield Remains(data[:start] + bytes(stop - start), is_torn=start in whole)
                if start < stop < size:
                    hole = data[:start] + bytes(stop - start)
                    for end in {*(one for one in ends if one > stop), stop + 1}:
                        yield Remains(hole + data[stop:end], is_torn=False)

    def _whole_places(self) -> set[int]:
        """Where zeros begin on a real disk: borders of writes and sectors."""
        first = -(-self.synced // SECTOR_BYTES) * SECTOR_BYTES
        return {*self.borders[-_PLACES_MAX:], *range(first, len(self.data), SECTOR_BYTES)}


class DirectoryHistory:
    """Which names of a directory are on the disk for sure, and which may be."""

    def __init__(self, entries: dict[str, Node]) -> None:
        self.synced = dict(entries)
        self.pending: list[Change] = []

    def sync(self, *, is_ok: bool) -> None:
        """Take down a sync. After one that failed the next one counts: names are in a journal, and it stays broken."""
        if is_ok:
            self.synced = apply(self.synced, self.pending)
            self.pending = []


class CrashStates:
    """Follows the log of a disk, and says what a crash right there may leave.

    Args:
        root: What was on the disk at first, all of it synced.
    """

    def __init__(self, root: Directory) -> None:
        self._root = root
        self._files: dict[File, FileHistory] = {}
        self._directories: dict[Directory, DirectoryHistory] = {}
        self.promises: dict[str, int] = {}
        """Path to how many records must be readable."""
        self._take(root)

    def follow(self, operation: Operation) -> None:
        """Go on by one operation."""
        match operation:
            case Write(file, data, is_whole):
                self._files[file].write(data, is_whole=is_whole)
            case Sync(node, is_ok):
                (self._files[node] if isinstance(node, File) else self._directories[node]).sync(is_ok=is_ok)
            case Change(directory, _, node):
                self._directories[directory].pending.append(operation)
                if isinstance(node, File):
                    self._files.setdefault(node, FileHistory(File()))
                elif node is not None:
                    self._directories[node] = DirectoryHistory({})
            case Promise(path, num_records):
                self.promises[path] = num_records

    def trees(self, rng: random.Random) -> Iterator[Tree]:
        """What may be on the disk: all names that may be there with each file's remains, and files mixed at random."""
        for names in self._all_names(rng):
            files = list(dict.fromkeys(node for node in names.values() if isinstance(node, File)))
            remains = {file: self._files[file].remains() for file in files}
            num_open = sum(len(several) > 1 for several in remains.values())
            for others in (0, -1) if num_open > 1 else (-1,):
                kept = _tree(names, {file: several[others] for file, several in remains.items()})
                for file in files:
                    # built by exchanging a few entries: this is where most of the time goes
                    places = [(number, path) for number, (path, node) in enumerate(names.items()) if node is file]
                    for one in remains[file]:
                        tree = list(kept)
                        for number, path in places:
                            tree[number] = path, one
                        yield tuple(tree)
                if not files:
                    yield kept
            if num_open > 1:
                for _ in range(_JOINT):
                    yield _tree(names, {file: rng.choice(several) for file, several in remains.items()})

    def _all_names(self, rng: random.Random) -> Iterator[dict[str, Node]]:
        """Every set of names that may be on the disk."""
        pending = [change for one in self._directories.values() for change in one.pending]
        if len(pending) <= _CHANGES_MAX:
            chosen = chain.from_iterable(combinations(pending, size) for size in range(len(pending) + 1))
        else:
            few = [tuple(c for c in pending if rng.random() < 0.5) for _ in range(1 << _CHANGES_MAX)]
            chosen = chain(few, [(), tuple(pending)])
        seen = set()
        for changes in chosen:
            names = dict(self._walk("", self._root, changes))
            if (key := tuple(names.items())) not in seen:
                seen.add(key)
                yield names

    def _walk(self, path: str, directory: Directory, changes: tuple[Change, ...]) -> Iterator[tuple[str, Node]]:
        own = [change for change in changes if change.directory is directory]
        for name, node in sorted(apply(self._directories[directory].synced, own).items()):
            yield f"{path}/{name}", node
            if isinstance(node, Directory):
                yield from self._walk(f"{path}/{name}", node, changes)

    def _take(self, directory: Directory) -> None:
        self._directories[directory] = DirectoryHistory(directory.entries)
        for node in directory.entries.values():
            if isinstance(node, Directory):
                self._take(node)
            else:
                self._files[node] = FileHistory(node)


def apply(entries: dict[str, Node], changes: list[Change]) -> dict[str, Node]:
    """A directory's names after changes."""
    entries = dict(entries)
    for change in changes:
        if change.node is None:
            entries.pop(change.name, None)
        else:
            entries[change.name] = change.node
    return entries


def _tree(names: dict[str, Node], remains: dict[File, Remains]) -> Tree:
    return tuple((path, remains[node] if isinstance(node, File) else None) for path, node in names.items())


def grow(tree: Tree) -> Directory:
    """A tree as a disk's content."""
    root = Directory()
    for path, remains in tree:
        *parents, name = path.split("/")[1:]
        directory = root
        for parent in parents:
            node = directory.entries[parent]
            assert isinstance(node, Directory)
            directory = node
        directory.entries[name] = (
            Directory() if remains is None else File(remains.content, is_damaged=not remains.is_torn)
        )
    return root

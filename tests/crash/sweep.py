"""Reads what crashes leave, and holds the ledger's promises against it.

Acknowledged means readable: what was recorded before a `sync` that returned, and a claim that returned, is read back.
Readable means a prefix: what is read back of a file is what was recorded, from its beginning on, or the file is
reported as damaged, and only where it lost more than its end.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, cast

from resumable_data.errors import LedgerCorruptError, ResumableDataError
from resumable_data.ledger import Ledger
from resumable_data.ledger.frames import RANK_KIND, FrameReader
from resumable_data.ledger.reader import read_claim, read_rank
from resumable_data.ledger.records import header_decoder
from tests.crash.filesystem import Directory, Disk, DiskPath, File, Promise, mount
from tests.crash.states import CrashStates, Remains, Tree, grow
from tests.crash.story import facts_in, facts_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from random import Random

    from resumable_data.ledger import Claim
    from tests.crash.story import Teller

FULL_READ_EVERY = 64
"""Of contents that look alike to the reader of frames, every so many are decoded as records too."""


FILE = DiskPath("/file")


class ViolationError(AssertionError):
    """A promise that was not kept."""


class RankFile:
    """Reads what is left of one rank's file; what it read once it remembers.

    Args:
        teller: What was recorded in it.
        whole: All that was written to it.
    """

    def __init__(self, teller: Teller, whole: bytes) -> None:
        self._records = teller.records
        self._payloads = _payloads_in(whole)
        self._known: dict[bytes, tuple[int, str]] = {}
        self._alike: dict[tuple[int, bool, bool], int] = {}

    def is_of(self, teller: Teller, whole: bytes) -> bool:
        """Whether this, and no more, was recorded in another such file, of which less may have been written."""
        payloads = _payloads_in(whole)
        return teller.records == self._records and payloads == self._payloads[: len(payloads)]

    def read(self, content: bytes) -> tuple[int, str]:
        """How many records are read back, where it is damaged those before the damage; and what the damage is.

        Raises:
            ViolationError: They are not those that were recorded.
        """
        if content not in self._known:
            self._known[content] = self._read(content)
        return self._known[content]

    def _read(self, content: bytes) -> tuple[int, str]:
        payloads, damage = [], ""
        frames = FrameReader(cast("Any", io.BytesIO(content)), cast("Path", FILE), kind=RANK_KIND)
        try:
            header = frames.first()
            payloads += [header] if header else []
            if header and payloads == self._payloads[:1]:
                frames.payload_bytes_max = header_decoder.decode(header).payload_bytes_max
            for _, more in frames.blocks():
                payloads += more
        except LedgerCorruptError as error:
            damage = str(error)
        if payloads != self._payloads[: len(payloads)]:
            raise ViolationError("records were read that were never written")
        alike = (len(payloads), bool(damage), frames.torn_bytes > 0)
        self._alike[alike] = self._alike.get(alike, -1) + 1
        if self._alike[alike] % FULL_READ_EVERY == 0:
            self._read_records(content, len(payloads), damage)
        return len(payloads), damage

    def _read_records(self, content: bytes, num_records: int, damage: str) -> None:
        root = Directory()
        root.entries["file"] = File(content)
        mount(Disk(root))
        log = read_rank(cast("Path", FILE), salvage=True)
        if log.damage != damage:
            raise ViolationError(f"the frames' reader says {damage!r}, the records' reader {log.damage!r}")
        expected, found = facts_of(self._records[:num_records]), facts_in(log)
        if found != expected:
            raise ViolationError(f"expected {expected}, read {found}")


class Sweep:
    """Looks at the states that crashes leave.

    Args:
        path: The ledger's place.

    Attributes:
        num_states: Different ones that were looked at.
        files: Rank files by path.
    """

    def __init__(self, path: DiskPath) -> None:
        self.num_states = 0
        self.files: dict[str, RankFile] = {}
        self._path = path
        self._claims: dict[tuple[str, bytes], Claim] = {}
        self._newest: dict[tuple[str, ...], int] = {}
        self._seen: set[Tree] = set()

    def add(self, disk: Disk, tellers: dict[str, Teller]) -> None:
        """Make known what was recorded in files of a disk."""
        for path, teller in tellers.items():
            node = disk.find(DiskPath(path))
            if isinstance(node, File):
                whole, known = bytes(node.data), self.files.get(path)
                self.files[path] = known if known and known.is_of(teller, whole) else RankFile(teller, whole)

    def run(self, disk: Disk, states: CrashStates, rng: Random, *, only_promises: bool = False) -> Iterator[Tree]:
        """All states that a crash after each operation of a disk's log may leave, once each; checked.

        Args:
            disk: Where something was done.
            states: What was on it before.
            rng: Chooses where there are too many.
            only_promises: Only those right after something was acknowledged, and at the end.

        Raises:
            ViolationError: A promise is not kept in one; says which, and after which operation.
        """
        checked: set[Tree] = set()
        for number, operation in enumerate(disk.log, 1):
            states.follow(operation)
            if isinstance(operation, Promise):
                checked = set()
            elif only_promises and number < len(disk.log):
                continue
            for tree in states.trees(rng):
                if tree in checked:
                    continue
                checked.add(tree)
                try:
                    self._check(dict(tree), states.promises)
                except ViolationError as error:
                    done = f"{number} of {len(disk.log)} operations, the last one {type(operation).__name__}"
                    raise ViolationError(f"{error}; after {done}; on the disk: {_shown(tree)}") from error
                if tree not in self._seen:
                    self._seen.add(tree)
                    self.num_states += 1
                    yield tree

    def _check(self, tree: dict[str, Remains | None], promises: dict[str, int]) -> None:
        read = {path: self._read(path, remains) for path, remains in tree.items() if remains is not None}
        for path, num_records in promises.items():
            if read.get(path, -1) < num_records:
                raise ViolationError(f"{path}: {num_records} records were acknowledged, {read.get(path)} can be read")
        names = tuple(tree)
        if names not in self._newest:
            self._newest[names] = self._find_newest(tree)
        for path in promises:
            if self._newest[names] < int(path.split("/attempt-")[1][:6]):
                raise ViolationError(f"{path} is of an attempt that was claimed, the newest is {self._newest[names]}")

    def _read(self, path: str, remains: Remains) -> int:
        """How many records of a file are read back."""
        if path.endswith(".ledger"):
            num_records, damage = self.files[path].read(remains.content)
            if damage and remains.is_torn:
                raise ViolationError(f"a torn tail was taken for damage: {damage}")
            return num_records
        return self._read_claim(path, remains.content) if path.endswith("/claim") else 0

    def _read_claim(self, path: str, content: bytes) -> int:
        """1: a claim is there whole, or not at all."""
        if (path, content) not in self._claims:
            root = Directory()
            root.entries["claim"] = File(content)
            mount(Disk(root))
            try:
                claim = self._claims[path, content] = read_claim(cast("Path", DiskPath("/claim")))
            except ResumableDataError as error:
                raise ViolationError(f"a claim that cannot be read: {error}") from error
            if f"/attempt-{claim.attempt:06d}/" not in path:
                raise ViolationError(f"{path} claims attempt {claim.attempt}")
        return 1

    def _find_newest(self, tree: dict[str, Remains | None]) -> int:
        """The newest attempt, which names alone decide, since claims are whole."""
        mount(Disk(grow(tuple(tree.items()))))
        try:
            newest = ledger_at(self._path, on_error="raise").newest()
        except ResumableDataError as error:
            raise ViolationError(f"what is left is no ledger: {error}") from error
        return newest.attempt if newest else 0


def ledger_at(path: DiskPath, **options: Any) -> Ledger:
    """The ledger at a place of the mounted disk."""
    ledger = Ledger("/nowhere", **options)
    ledger.path = cast("Path", path)
    return ledger


def _payloads_in(whole: bytes) -> list[bytes]:
    """The payloads of a file's whole frames, taken apart as the format's description says."""
    payloads, at = [], 16
    while at + 12 < len(whole):
        size = int.from_bytes(whole[at : at + 4], "little")
        payloads.append(whole[at + 4 : at + 4 + size])
        at += size + 12
    return payloads if at == len(whole) else payloads[:-1]


def _shown(tree: Tree) -> dict[str, Any]:
    return {path: remains and (len(remains.content), remains.is_torn) for path, remains in tree}

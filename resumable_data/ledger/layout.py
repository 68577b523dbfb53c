"""Names of files and directories in a ledger.

::

    LEDGER/
      attempt-000001/             one launch of the job
        claim                     run, cursor it starts at, ranks; made whole or not at all
        rank-00000.ledger         what dp rank 0 delivered and committed
        rank-00001.ledger
        rank-00001-peer-00001.ledger    a second reader of the same samples, where asked for
        watch.json                what `validation.watch` says of its first updates; no evidence of what was read
        .claim-<random>           what a launch killed while claiming leaves behind; without meaning
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import msgspec

from resumable_data.errors import LedgerError
from resumable_data.ledger.frames import not_regular, shown

if TYPE_CHECKING:
    from pathlib import Path

CLAIM_NAME = "claim"
WATCH_NAME = "watch.json"
_ATTEMPT_NAME = re.compile(r"attempt-(\d{6,18})", re.ASCII)
_RANK_NAME = re.compile(r"rank-(\d{5,18})(?:-peer-(\d{5,18}))?\.ledger", re.ASCII)
_UNFINISHED_NAME = re.compile(r"\.claim-\w{1,64}|\.watch\.json-\w{1,64}\.tmp", re.ASCII)


class AttemptFiles(msgspec.Struct, frozen=True):
    """What lies in one attempt's directory.

    Attributes:
        number: The attempt.
        path: Its directory.
        has_claim: Whether a launch claimed it.
        ranks: dp rank to file, of the ranks' first readers.
        peers: Files of further readers.
        unknown: Entries that have no meaning in a ledger.
    """

    number: int
    path: Path
    has_claim: bool
    ranks: dict[int, Path]
    peers: tuple[Path, ...]
    unknown: tuple[Path, ...]


def attempt_name(attempt: int) -> str:
    """Name of an attempt's directory."""
    return f"attempt-{attempt:06d}"


def rank_name(rank: int, peer: int = 0) -> str:
    """Name of a rank's file."""
    return f"rank-{rank:05d}-peer-{peer:05d}.ledger" if peer else f"rank-{rank:05d}.ledger"


def attempt_number(name: str) -> int | None:
    """The attempt whose directory has this name; None where it is another name."""
    match = _ATTEMPT_NAME.fullmatch(name)
    number = int(match[1]) if match else 0
    return number if number and attempt_name(number) == name else None


def rank_and_peer(name: str) -> tuple[int, int] | None:
    """The rank and peer whose file has this name; None where it is another name."""
    match = _RANK_NAME.fullmatch(name)
    if not match:
        return None
    rank, peer = int(match[1]), int(match[2] or 0)
    return (rank, peer) if rank_name(rank, peer) == name else None


def list_attempts(root: Path) -> tuple[dict[int, Path], tuple[Path, ...]]:
    """The attempts' directories by number, in order, and entries that have no meaning in a ledger.

    Raises:
        LedgerError: There is no ledger at `root`.
        LedgerCorruptError: An attempt is no directory.
    """
    attempts: dict[int, Path] = {}
    unknown: list[Path] = []
    for entry in _scan(root):
        number = attempt_number(entry.name)
        if number is None:
            unknown.append(root / entry.name)
            continue
        if not entry.is_dir(follow_symlinks=False):
            raise not_regular(root / entry.name, _kind(entry) + " in place of an attempt's directory")
        attempts[number] = root / entry.name
    return dict(sorted(attempts.items())), tuple(sorted(unknown))


def list_attempt(number: int, path: Path) -> AttemptFiles:
    """What lies in one attempt's directory.

    Raises:
        LedgerCorruptError: A claim or rank file is no regular file.
    """
    has_claim = False
    ranks: dict[int, Path] = {}
    peers: list[Path] = []
    unknown: list[Path] = []
    for entry in _scan(path):
        place = rank_and_peer(entry.name)
        is_regular = entry.is_file(follow_symlinks=False)
        if (place or entry.name == CLAIM_NAME) and not is_regular:
            raise not_regular(path / entry.name, _kind(entry))
        if entry.name == CLAIM_NAME:
            has_claim = True
        elif place and place[1]:
            peers.append(path / entry.name)
        elif place:
            ranks[place[0]] = path / entry.name
        elif not (is_regular and (entry.name == WATCH_NAME or _UNFINISHED_NAME.fullmatch(entry.name))):
            unknown.append(path / entry.name)
    return AttemptFiles(
        number, path, has_claim, dict(sorted(ranks.items())), tuple(sorted(peers)), tuple(sorted(unknown))
    )


def _scan(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        raise LedgerError(
            f"expected the directory of a ledger at {shown(path)}, found none that can be read "
            f"({error.strerror}). Nothing was audited; give the path that the loader got as ledger=."
        ) from error


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "a symbolic link"
    return "a directory" if entry.is_dir(follow_symlinks=False) else "something else"

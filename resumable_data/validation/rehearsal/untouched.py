"""What of a run's files was there before a rehearsal, and whether it is still as it was."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from resumable_data.findings import PlainFinding
from resumable_data.ledger.frames import shown
from resumable_data.validation.checks import FAILED, PASSED, Check
from resumable_data.validation.verdict_findings import finding

MAX_FILES = 100_000
_SHOWN = 8


class Look(NamedTuple):
    """What tells that a file is the one it was, without reading it: a write changes at least one of these."""

    inode: int
    size: int
    changed_ns: int


class Watched:
    """Files under some paths, as they are now.

    Args:
        paths: Files and directories; those that do not exist must not come to be.
        apart: Paths that are the rehearsal's own, and may change.
    """

    def __init__(self, paths: Iterable[Path], apart: Iterable[Path] = ()) -> None:
        self._paths = sorted({path.absolute() for path in paths})
        self._apart = {path.absolute() for path in apart}
        self._before = self._look()

    def check(self) -> Check:
        """Whether all of them are as they were."""
        now = self._look()
        changed = sorted(path for path in self._before.keys() | now.keys() if self._before.get(path) != now.get(path))
        findings = [self._finding(path, now) for path in changed[:_SHOWN]]
        places = ", ".join(shown(path) for path in self._paths)
        more = f", {len(changed)} changed" if changed else ""
        return Check.of("untouched", FAILED if changed else PASSED, f"{len(now)} files of {places}{more}", findings)

    def _finding(self, path: str, now: dict[str, Look]) -> PlainFinding:
        there = "it was changed" if path in self._before else "it is new"
        what = there if path in now else "it is gone"
        return finding("RD991", shown(path), expected="as it was before the rehearsal", found=what)

    def _look(self) -> dict[str, Look]:
        found: dict[str, Look] = {}
        for path in self._paths:
            for file, status in _files(path, self._apart):
                found[str(file)] = Look(status.st_ino, status.st_size, status.st_ctime_ns)
                if len(found) >= MAX_FILES:
                    return found
        return found


def run_paths(checkpoint: Path) -> list[Path]:
    """Where a run's files are by its checkpoint: in that, and in the directory above, unless everybody shares it."""
    parent = checkpoint.absolute().parent
    everybodys = {Path("/"), Path(tempfile.gettempdir()).absolute(), Path.home()}
    return [checkpoint] if parent in everybodys else [parent]


def _files(path: Path, apart: set[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """All that is no directory under a path; links are not followed."""
    if path in apart:
        return
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            yield path, status
            return
        names = sorted(os.listdir(path))
    except OSError:
        return
    for name in names:
        yield from _files(path / name, apart)

"""Where the report of a watch lies."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.checkpoint.manifest import write_whole
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.ledger.layout import WATCH_NAME, attempt_name

if TYPE_CHECKING:
    import os

    from resumable_data.ledger import Ledger
    from resumable_data.validation.watch_report import WatchReport

_logger = logging.getLogger(__name__)


class ReportFile:
    """A file at a path, or beside the claim of a launch's attempt.

    Args:
        path: The path; None for the ledger.
        ledger: The loader's ledger.

    Raises:
        UsageError: There is neither.
    """

    def __init__(self, path: str | os.PathLike[str] | None, ledger: Ledger | None) -> None:
        if path is None and ledger is None:
            raise UsageError(
                "expected a loader with a ledger, beside whose claim the report is written, or path=; found neither. "
                "Nothing is watched."
            )
        self._path = None if path is None else Path(path)
        self._ledger = ledger
        self._is_broken = False

    def where(self, attempt: int) -> Path | None:
        """Where the report of an attempt is; None where no attempt could be claimed."""
        if self._path is not None:
            return self._path
        assert self._ledger is not None
        return self._ledger.path / attempt_name(attempt) / WATCH_NAME if attempt else None

    def shown(self, attempt: int) -> str:
        """The same for people."""
        return shown(self.where(attempt) or "in memory only")

    def write(self, report: WatchReport) -> None:
        """Trouble with the file must not end training: it is logged once, and the report stays in memory."""
        path = self.where(report.attempt)
        if path is None or self._is_broken:
            return
        try:
            if self._path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path.parent, path.name, report.to_json())
        except (OSError, CheckpointError) as error:
            self._is_broken = True
            _logger.error("the report of the watch cannot be written to %s: %s", shown(path), error)

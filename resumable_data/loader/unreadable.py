"""Samples that could not be read and were replaced by rows of weight zero: counted, logged, bounded."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from resumable_data.errors import SampleReadError, UsageError
from resumable_data.loader.fetch import name_sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.loader.agreement import Report
    from resumable_data.loader.fetch import ReadFailure
    from resumable_data.sampler import MicrobatchRows

ON_UNREADABLE_CHOICES = ("raise", "filler")
_logger = logging.getLogger(__name__)


class UnreadableSamples:
    """Counts the samples that one rank replaced in one launch; one that is read again counts once.

    Args:
        most: How many may be replaced.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._positions: set[int] = set()

    def add(self, rows: MicrobatchRows, failures: Sequence[ReadFailure]) -> tuple[int, ...]:
        """Take down rows that could not be read; the numbers of those that are no filler.

        A filler row has weight zero whatever stands in it, so it is neither counted nor recorded.

        Raises:
            SampleReadError: They are more than allowed.
        """
        omitted = []
        for failure in failures:
            row = failure.row
            assert row is not None
            if row >= rows.num_rows:
                continue
            position = rows.start + rows.shape.stride * row
            if position not in self._positions and len(self._positions) == self._most:
                raise self._too_many(rows, failure)
            self._positions.add(position)
            omitted.append(row)
            _logger.error(
                "%s cannot be read: %s. A filler row of weight 0 takes its place (%d of at most %d on this rank), and "
                "the ledger records the omission.",
                name_sample(rows, row),
                failure.reason,
                len(self._positions),
                self._most,
            )
        return tuple(omitted)

    def _too_many(self, rows: MicrobatchRows, failure: ReadFailure) -> SampleReadError:
        error = SampleReadError(
            f"{name_sample(rows, failure.row)} cannot be read: {failure.reason}. Expected at most {self._most} such "
            f"samples on this rank in this launch (max_unreadable), found one more. The cursor did not "
            "move: mend the dataset and resume from the last checkpoint, or allow more."
        )
        error.add_note(failure.details)
        return error


def make_unreadable(on_unreadable: str, most: int | None, *, has_ledger: bool) -> UnreadableSamples | None:
    """The counter for ``on_unreadable="filler"``; None for ``"raise"``.

    Raises:
        UsageError: The arguments have no meaning together.
    """
    if on_unreadable not in ON_UNREADABLE_CHOICES:
        raise UsageError(f"on_unreadable must be one of {ON_UNREADABLE_CHOICES}, got {on_unreadable!r}")
    if on_unreadable == "raise":
        if most is not None:
            raise UsageError('max_unreadable= has a meaning with on_unreadable="filler" only; give both or neither')
        return None
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise UsageError(
            f'on_unreadable="filler" needs max_unreadable=, an integer of at least 0; got {most!r}. It is how many '
            "samples each rank may replace in one launch before it stops."
        )
    if not has_ledger:
        raise UsageError(
            'on_unreadable="filler" needs ledger=: a sample that was not trained on would be recorded nowhere else, '
            "and the checkpoint's own digest, which speaks of what was handed out, would still call the run whole."
        )
    return UnreadableSamples(most)


def require_no_peers(reports: Sequence[Report]) -> None:
    """Make sure that no data-parallel rank has several processes: one may fail to read what the others can.

    Raises:
        UsageError: One has.
    """
    num_ranks = len({report.rank for report in reports})
    if len(reports) > num_ranks:
        raise UsageError(
            f'on_unreadable="filler" expects one process per data-parallel rank, found {len(reports)} processes of '
            f"{num_ranks} ranks. Where one of several peers cannot read a sample, the peers would compute on different "
            'rows, unnoticed. Nothing was read; use on_unreadable="raise" with tensor-, context- or pipeline-parallel '
            "ranks."
        )

"""What each launch covered of the run's positions, drawn with letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resumable_data.audit.report import AttemptReport, AuditReport

WIDTH = 60
_LEGEND = "= committed, x discarded, > in flight"


def draw_coverage(report: AuditReport) -> list[str]:
    """A line for each attempt, the run's positions from left to right; none where nothing was delivered.

    An attempt's positions may be discarded in part only, say by a rewind: the picture shows where, not how many.
    """
    end = max((max(one.stop_position, one.reached_position) for one in report.attempts), default=0)
    if not end:
        return []
    number = max(len(str(one.attempt)) for one in report.attempts)
    head = " " * (number + 2)
    lines = [f"{head}0{str(end).rjust(WIDTH - 1)}"]
    for one in report.attempts:
        lines.append(f"{str(one.attempt).rjust(number)} |{_bar(one, end)}|")
    return [*lines, f"{head}{_LEGEND}"]


def _bar(one: AttemptReport, end: int) -> str:
    cells = [" "] * WIDTH
    beyond = ">" if one.is_newest or one.in_flight else "x"
    _fill(cells, one.stop_position, one.reached_position, beyond, end)
    _fill(cells, one.first_position, one.stop_position, "=", end)
    return "".join(cells)


def _fill(cells: list[str], start: int, stop: int, mark: str, end: int) -> None:
    """Mark the cells that hold some of positions [start, stop) of [0, end)."""
    if start < stop:
        low, high = start * WIDTH // end, -(-stop * WIDTH // end)
        cells[low:high] = mark * (high - low)

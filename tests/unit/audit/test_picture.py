"""The picture of what launches covered."""

from __future__ import annotations

import msgspec

from resumable_data.audit.picture import WIDTH, draw_coverage
from resumable_data.audit.report import NOTHING, AttemptReport, AuditReport

ATTEMPT = AttemptReport(
    attempt=1,
    parent=0,
    num_replicas=1,
    microbatch=1,
    global_batch=1,
    survives=True,
    first_update=0,
    stop_update=0,
    first_position=0,
    stop_position=0,
    reached_position=0,
    is_newest=False,
    skipped=0,
    delivered=0,
    discarded=NOTHING,
    in_flight=0,
)
REPORT = AuditReport(
    subject="ledger",
    path="",
    verdict="proven",
    run_id="",
    updates=0,
    skipped=0,
    position=0,
    epoch=0,
    offset=0,
    samples=0,
    padding=0,
    dropped=0,
    replayed=NOTHING,
    omitted=NOTHING,
)


def picture(*places: tuple[int, int, int]) -> list[str]:
    """Attempts with (first, stop, reached) positions, the last one the newest."""
    attempts = tuple(
        msgspec.structs.replace(
            ATTEMPT,
            attempt=number,
            first_position=first,
            stop_position=stop,
            reached_position=reached,
            is_newest=number == len(places),
        )
        for number, (first, stop, reached) in enumerate(places, 1)
    )
    return draw_coverage(msgspec.structs.replace(REPORT, attempts=attempts))


def test_each_launch_is_a_bar_over_the_positions() -> None:
    """Committed positions, then what was discarded, or is in flight in the newest launch."""
    lines = picture((0, 30, 45), (30, 50, 60))
    assert lines == [
        "   0" + "60".rjust(WIDTH - 1),
        "1 |" + "=" * 30 + "x" * 15 + " " * 15 + "|",
        "2 |" + " " * 30 + "=" * 20 + ">" * 10 + "|",
        "   = committed, x discarded, > in flight",
    ]


def test_a_single_position_of_many_is_seen() -> None:
    """However long the run, what was covered has a mark; where nothing was, there is no picture."""
    (_, first, second, _) = picture((0, 1, 1), (1, 10**12, 10**12))
    assert first == "1 |=" + " " * (WIDTH - 1) + "|"
    assert second == "2 |" + "=" * WIDTH + "|"
    assert picture((0, 0, 0)) == picture() == []

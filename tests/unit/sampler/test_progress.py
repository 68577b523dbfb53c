"""What was delivered and committed."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest

from resumable_data import Cursor, Recipe, Sequential
from resumable_data.cursor import CoverageSpan
from resumable_data.errors import CommitError
from resumable_data.plan import Schedule
from resumable_data.sampler import LossWeight, Progress, RankLayout, RankRows
from resumable_data.sampler.progress import MAX_UNCOMMITTED
from tests.oracle import Row, coverage_lanes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.sampler import MicrobatchRows

ORDER = Sequential(10)


def start() -> Cursor:
    return Cursor(recipe=Recipe(order=ORDER.describe(), global_batch=4))


def rows(*, rank: int = 0, num_replicas: int = 1) -> Iterator[MicrobatchRows]:
    source = RankRows(
        ORDER,
        schedule=Schedule(length=10, global_batch=4),
        layout=RankLayout(rank=rank, num_replicas=num_replicas, microbatch=2 // num_replicas),
        weight=LossWeight(normalize="samples", factor=1.0),
    )
    return source.from_place(update=0, epoch=0, offset=0)


def lanes(positions: range) -> tuple[int, int]:
    return coverage_lanes([Row(position, position % 10) for position in positions])


def test_delivering_moves_nothing_and_commit_moves_one_update() -> None:
    """The cursor stays until commit(), and each commit() takes the oldest update, however far delivery ran ahead."""
    progress = Progress(start(), schedule=start().schedule(), is_alone=True)
    for microbatch in islice(rows(), 6):
        progress.deliver(microbatch)
    assert progress.cursor == start()
    for number in range(3):
        assert progress.commit(applied=number != 1) == number
    cursor = progress.cursor
    assert (cursor.applied, cursor.skipped, cursor.samples) == (2, 1, 12)
    assert (cursor.epoch, cursor.offset) == (1, 2)
    assert cursor.coverage == (CoverageSpan(0, 12, lanes(range(12))),)
    assert not progress.has_uncommitted


@pytest.mark.parametrize(("num_delivered", "found"), [(0, "nothing of it was"), (1, "only a part of it was")])
def test_a_commit_of_what_was_not_delivered_is_refused(num_delivered: int, found: str) -> None:
    """The message names the update, what was found, that nothing moved and when to commit."""
    progress = Progress(start(), schedule=start().schedule(), is_alone=True)
    for microbatch in islice(rows(), num_delivered):
        progress.deliver(microbatch)
    with pytest.raises(CommitError, match=rf"update 0 was delivered; {found}. The cursor did not move. Call"):
        progress.commit(applied=True)
    assert progress.cursor == start()


def test_a_second_commit_is_refused() -> None:
    """An update is committed once."""
    progress = Progress(start(), schedule=start().schedule(), is_alone=True)
    for microbatch in islice(rows(), 3):
        progress.deliver(microbatch)
    progress.commit(applied=True)
    with pytest.raises(CommitError, match="update 1 was delivered; only a part"):
        progress.commit(applied=True)
    assert progress.cursor.updates == 1


def test_a_loop_that_never_commits_is_told_so() -> None:
    """After 64 updates without a commit the next one is refused, with what a checkpoint would do."""
    progress = Progress(start(), schedule=start().schedule(), is_alone=True)
    stream = rows()
    for microbatch in islice(stream, 2 * MAX_UNCOMMITTED):
        progress.deliver(microbatch)
    assert MAX_UNCOMMITTED == 64
    with pytest.raises(CommitError, match=r"64 updates were delivered since update 0.*repeat all.*loader.commit\(\)"):
        progress.deliver(next(stream))


def test_a_rewind_forgets_what_was_not_committed() -> None:
    """After a rewind the digest holds what was delivered the second time, once."""
    progress = Progress(start(), schedule=start().schedule(), is_alone=True)
    for microbatch in islice(rows(), 3):
        progress.deliver(microbatch)
    progress.rewind()
    assert not progress.has_uncommitted
    for microbatch in islice(rows(), 2):
        progress.deliver(microbatch)
    progress.commit(applied=True)
    assert progress.cursor.coverage == (CoverageSpan(0, 4, lanes(range(4))),)


def test_one_rank_of_several_knows_its_own_part_only() -> None:
    """The digest enters the cursor when all ranks' parts are known, and what comes after starts a new part."""
    progress = Progress(start(), schedule=start().schedule(), is_alone=False)
    stream = rows(rank=1, num_replicas=2)
    for microbatch in islice(stream, 2):
        progress.deliver(microbatch)
    progress.commit(applied=True)
    assert not progress.cursor.coverage
    own = coverage_lanes([Row(1, 1), Row(3, 3)])
    assert progress.own_coverage == CoverageSpan(0, 4, own)
    progress.cover(lanes(range(4)))
    assert progress.cursor.coverage == (CoverageSpan(0, 4, lanes(range(4))),)
    assert progress.own_coverage == CoverageSpan(4, 4, (0, 0))

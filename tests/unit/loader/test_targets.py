"""normalize="targets": the denominator is counted when an update is at hand."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from resumable_data import ResumableLoader, Sequential
from resumable_data.errors import CommitError, UsageError
from tests.simulated_ranks import Numbers, keep_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable_data import Update


def make(length: int = 20, **options: Any) -> ResumableLoader:
    settings: dict[str, Any] = {"global_batch": 4, "microbatch": 2, "rank": 0, "num_replicas": 1, "epochs": 2}
    settings |= {"collate_fn": keep_list, "order": Sequential(length), "normalize": "targets", **options}
    return ResumableLoader(Numbers(length), **settings)


def count(update: Update) -> int:
    """Sample i has i target tokens."""
    return sum(sum(microbatch.ids.tolist()) for microbatch in update)


def test_a_scale_is_the_factor_over_the_count_of_the_update() -> None:
    """All microbatches of an update share one scale, and the cursor counts the tokens of what was committed."""
    loader = make(reduction_size=6)
    for update in islice(loader.updates(), 3):
        update.set_targets(count(update))
        assert [microbatch.loss_scale for microbatch in update] == [6 / count(update)] * 2
        update.commit()
    assert loader.cursor.tokens == sum(range(12))
    summed = next(make(gradient_reduction="sum").updates())
    summed.set_targets(8)
    assert summed.microbatches[0].loss_scale == 1 / 8


def test_a_scale_reaches_copies_made_before_the_count() -> None:
    """A microbatch that was moved to a device before set_targets has the scale too; one of no tokens is harmless."""
    update = next(make().updates())
    moved = [microbatch.to("cpu") for microbatch in update]
    update.set_targets(torch.tensor([0], dtype=torch.int32))
    assert [microbatch.loss_scale for microbatch in moved] == [1.0, 1.0]
    moved[0].loss_scale *= 2
    assert moved[0].to("cpu").loss_scale == 2.0
    assert moved[1].loss_scale == 1.0


def test_what_needs_the_count_waits_for_it() -> None:
    """Before set_targets, neither a scale nor a commit can be had, and the error says what to call."""
    loader = make()
    update = next(loader.updates())
    with pytest.raises(UsageError, match=r"expects update.set_targets\(count\) before loss_scale of update 0"):
        _ = update.microbatches[1].loss_scale
    for commit in (update.commit, loader.commit):
        with pytest.raises(CommitError, match=r"expects update.set_targets\(\) before update 0 is committed"):
            commit()
    assert loader.cursor.updates == 0
    update.set_targets(5)
    update.commit()
    assert (loader.cursor.updates, loader.cursor.tokens) == (1, 5)


def test_single_microbatches_are_refused() -> None:
    """The loader itself cannot be iterated: the way out is in the error, and nothing was read."""
    with pytest.raises(UsageError, match=r"for update in loader.updates\(\)"):
        iter(make())


@pytest.mark.parametrize(
    "wrong", [True, -1, 2.0, "3", torch.tensor(3.0), torch.tensor([1, 2]), torch.tensor(True), 1 << 49]
)
def test_what_is_no_count_is_refused(wrong: Any) -> None:
    """Only an integer that can be exact is a count; the scale stays unknown."""
    update = next(make().updates())
    with pytest.raises(UsageError, match="expects the number of target tokens, an integer"):
        update.set_targets(wrong)
    update.set_targets(3)


def test_counts_are_given_once_each_in_the_update_s_turn() -> None:
    """A second count, one of a committed update, one of an iteration that is over: each is refused."""
    loader = make()
    stream = loader.updates()
    first, second = next(stream), next(stream)
    second.set_targets(7)
    first.set_targets(5)
    with pytest.raises(UsageError, match="were given already"):
        first.set_targets(5)
    first.commit()
    second.commit()
    assert loader.cursor.tokens == 12
    late = next(stream)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(CommitError, match=r"found update 2: the cursor is at update 2, 0 are delivered"):
        late.set_targets(1)
    again = next(loader.updates())
    again.set_targets(9)
    loader.updates()
    with pytest.raises(CommitError, match="nothing of it was"):
        again.commit()


def test_other_normalisations_refuse_a_count() -> None:
    """A loader that knows its denominator says so."""
    with pytest.raises(UsageError, match="this one knows its denominator already"):
        next(make(normalize="samples").updates()).set_targets(3)


def test_simulated_ranks_give_the_sum() -> None:
    """Ranks without a process group cannot add counts up, and take the sum from whoever can."""
    loaders = [make(rank=rank, num_replicas=3) for rank in range(3)]
    updates = [next(loader.updates()) for loader in loaders]
    with pytest.raises(UsageError, match=r"rank 0 of 3 by its arguments.*global_count="):
        updates[0].set_targets(4)
    choices: list[Callable[[], None]] = [updates[0].set_targets, lambda: updates[0].set_targets(1, global_count=2)]
    for call in choices:
        with pytest.raises(UsageError, match="either the count of this rank's rows or global_count="):
            call()
    total = sum(map(count, updates))
    for update in updates:
        update.set_targets(global_count=total)
        assert {microbatch.loss_scale for microbatch in update} == {3 / total}
        update.commit()
    assert loaders[0].check_agreement(loaders).tokens == total == 6

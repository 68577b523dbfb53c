"""What every loader and sampler does with a state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch.utils.data

from resumable_data import Cursor, DistributedSampler, ResumableLoader, ResumableSampler, Sequential, track
from resumable_data.cursor import Migration, RecipeChange
from resumable_data.errors import StateError
from resumable_data.sampler.state import make_state

DATASET = torch.utils.data.TensorDataset(torch.arange(20))


def make(kind: str, **options: Any) -> Any:
    if kind == "track":
        sampler = DistributedSampler(DATASET, num_replicas=1, rank=0)
        return track(torch.utils.data.DataLoader(DATASET, batch_size=4, sampler=sampler), **options)
    options |= {"global_batch": 4, "microbatch": 2, "rank": 0, "num_replicas": 1}
    if kind == "sampler":
        return ResumableSampler(Sequential(20), **options)
    return ResumableLoader(DATASET, order=Sequential(20), **options)


def changed_often(kind: str, times: int) -> Cursor:
    """The cursor of such a run, its fingerprint changed so many times."""
    migration = Migration(2**40, 2**44, (RecipeChange("fingerprint", "a" * 64, "b" * 64),))
    cursor: Cursor = make(kind).cursor
    return msgspec.structs.replace(cursor, migrations=(migration,) * times)


@pytest.mark.parametrize("kind", ["loader", "sampler", "track"])
def test_a_change_too_many_is_refused_by_whoever_loads_it(kind: str) -> None:
    """A change that fits beside fourteen others is made; a longer one is refused, and nothing is loaded."""
    state = make_state(changed_often(kind, 14))
    fits = make(kind, fingerprint="c" * 64)
    fits.load_state_dict(state, allow={"fingerprint"})
    assert len(fits.cursor.migrations) == 15
    too_long = make(kind, fingerprint="d" * 512)
    with pytest.raises(StateError, match=r"15 migrations in it: a later checkpoint could not be saved\. Nothing was"):
        too_long.load_state_dict(state, allow={"fingerprint"})
    assert too_long.cursor.migrations == ()


@pytest.mark.parametrize("kind", ["loader", "sampler", "track"])
def test_a_cursor_that_no_checkpoint_can_hold_is_refused(kind: str) -> None:
    """A cursor that was declared, and never saved, is measured when it is given; one that fits is taken."""
    make(kind).load_state_dict(changed_often(kind, 14))
    with pytest.raises(StateError, match="expected a cursor that takes at most 4072 bytes"):
        make(kind).load_state_dict(changed_often(kind, 20))


def test_a_state_that_was_saved_is_loaded_however_full() -> None:
    """Without a change, what fitted its tensor is not measured again: it may fit to the end of its run."""
    crowded = changed_often("loader", 20)
    loader = make("loader")
    loader.load_state_dict(make_state(crowded))
    assert loader.cursor == crowded

"""Cases 29-31, 36 and 37: what may change, exact counters, and what a loss weighs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from resumable_data import Cursor, Sequential, Shuffle, TorchShuffle
from resumable_data.cursor import STATE_KEY, encode_cursor
from resumable_data.errors import RecipeMismatchError
from tests.simulated_ranks import Job, flat

BASE: dict[str, Any] = {"global_batch": 8, "microbatch": 2, "epochs": 2, "fingerprint": "tokenizer 1"}


class Renewed(Shuffle):
    """The same kind of order in a later version."""

    version = 2


@pytest.mark.parametrize(
    ("length", "options", "field", "values"),
    [
        (80, {"order": Shuffle(80)}, "order.length", ("64", "80")),
        (64, {"order": Shuffle(64, seed=1)}, "order.seed", ("0", "1")),
        (64, {"order": Sequential(64)}, "order.kind", ("'shuffle'", "'sequential'")),
        (64, {"order": TorchShuffle(64)}, "order.kind", ("'shuffle'", "'torch_shuffle'")),
        (64, {"order": Shuffle(64, name="web")}, "order.name", ("''", "'web'")),
        (64, {"tail": "drop"}, "tail", ("'carry'", "'drop'")),
        (64, {"fingerprint": "tokenizer 2"}, "fingerprint", ("'tokenizer 1'", "'tokenizer 2'")),
        (64, {"global_batch": 9}, "global_batch", ("8", "9")),
    ],
)
def test_case_29_a_changed_recipe_is_refused(
    length: int, options: dict[str, Any], field: str, values: tuple[str, str]
) -> None:
    """One at a time: refused, the field and both values named, the loader where it was."""
    saved = Job(64, 2, **BASE)
    saved.train(2)
    job = Job(length, 2, **{"order": Shuffle(64), **BASE, **options})
    with pytest.raises(RecipeMismatchError) as caught:
        job.load(saved.save())
    lines = [line.split() for line in str(caught.value).splitlines()]
    (found,) = [line for line in lines if line[:1] == [field]]
    assert " ".join(found[1:]).startswith(" ".join(values))
    assert job.loaders[0].cursor.position == 0


def test_case_29_another_version_of_an_order_is_refused() -> None:
    """The same arguments in another version of the algorithm are another sequence."""
    saved = Job(64, 1, **BASE)
    saved.train(1)
    recipe = msgspec.structs.replace(saved.loaders[0].cursor.recipe, order=Renewed(64).describe())
    cursor = msgspec.structs.replace(saved.loaders[0].cursor, recipe=recipe)
    state = {STATE_KEY: torch.frombuffer(bytearray(encode_cursor(cursor)), dtype=torch.uint8)}
    with pytest.raises(RecipeMismatchError, match=r"order.version\s+2\s+1"):
        Job(64, 1, **BASE).load(state)


@pytest.mark.parametrize(("old", "new", "at"), [(4, 6, 8), (512, 768, 1024)])
def test_case_30_another_global_batch_goes_on_at_the_same_position(old: int, new: int, at: int) -> None:
    """G 4 -> 6 at cursor 8 (and 512 -> 768): the next ID is position 8, not a floor; the change is recorded."""
    length = 10 * new
    saved = Job(length, 2, order=Sequential(length), global_batch=old, microbatch=64, epochs=1)
    saved.train(2)
    job = Job(length, 3, order=Sequential(length), global_batch=new, microbatch=64, epochs=1)
    job.load(saved.save(), allow={"global_batch"})
    ids = job.train()
    assert ids[0] == list(range(at, at + new))
    assert flat(ids) == list(range(at, length))
    (migration,) = job.agree().migrations
    assert (migration.update, migration.position) == (2, at)
    assert job.loaders[0].cursor.coverage[0].start == 0, "the digest still speaks of the whole run"


@pytest.mark.parametrize("tail", ["carry", "short", "drop", "pad"])
def test_case_30_a_longer_run_leaves_the_past_as_it_was(tail: str) -> None:
    """A run of 1 epoch that is extended to 3 goes on where it ended; what it read stays the same."""
    short = Job(10, 2, global_batch=5, microbatch=2, tail=tail, epochs=1)
    past = short.train()
    longer = Job(10, 3, global_batch=5, microbatch=2, tail=tail, epochs=3)
    longer.load(short.save())
    assert past + longer.train() == Job(10, 1, global_batch=5, microbatch=5, tail=tail, epochs=3).train()


@pytest.mark.parametrize("large", [2**31, 2**32, 2**53, 2**62])
def test_case_31_counters_are_exact(large: int) -> None:
    """Samples and tokens past 2^31, 2^32 and 2^53 are exact through a state, a commit and JSON."""
    length, tokens = 1000, [2**40 + i for i in range(1000)]
    options: dict[str, Any] = {"order": Sequential(length), "global_batch": 3, "microbatch": 2}
    options["num_target_tokens"] = tokens
    job = Job(length, 2, **options)
    epoch, offset = divmod(large + 1, length)
    start = msgspec.structs.replace(
        job.loaders[0].cursor, applied=large, samples=large + 1, tokens=large + 7, epoch=epoch, offset=offset
    )
    job.load({STATE_KEY: torch.frombuffer(bytearray(encode_cursor(start)), dtype=torch.uint8)})
    update = job.update()
    assert update is not None
    assert update[0][1].positions.tolist() == [large + 2]
    job.commit()
    cursor = job.agree()
    added = sum(tokens[(large + 1 + i) % length] for i in range(3))
    assert (cursor.samples, cursor.tokens, cursor.position) == (large + 4, large + 7 + added, large + 4)
    assert (cursor.applied, cursor.coverage[-1].start) == (large + 1, large + 1)
    assert json.loads(cursor.to_json())["tokens"] == large + 7 + added
    assert Cursor.from_json(cursor.to_json()) == cursor


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("num_target_tokens", ["array", "function"])
def test_case_36_the_token_mean_is_over_the_update(reduction: str, num_target_tokens: str) -> None:
    """Lengths 1 and 99, A=2, W=2: each token weighs the same, not each microbatch."""
    lengths = np.array([1, 99, 99, 1, 1, 1, 99, 99] * 2)
    losses = np.random.default_rng(1).normal(size=16)  # the summed loss of each sample's tokens
    job = Job(
        16,
        2,
        global_batch=4,
        microbatch=1,
        normalize="tokens",
        num_target_tokens=lengths if num_target_tokens == "array" else lambda ids: lengths[ids],
        gradient_reduction=reduction,
        epochs=1,
    )
    num_tokens = 0
    while update := job.update():
        assert len(update) == 2
        total = sum(float(losses[rank.data].sum()) * rank.loss_scale for step in update for rank in step)
        ids = [sample_id for step in update for rank in step for sample_id in rank.ids.tolist()]
        wanted = losses[ids].sum() / lengths[ids].sum()
        assert total / (2 if reduction == "mean" else 1) == pytest.approx(wanted, rel=1e-12)
        job.commit()
        num_tokens += int(lengths[ids].sum())
        assert job.loaders[1].cursor.tokens == num_tokens
    assert num_tokens == lengths.sum()


@pytest.mark.parametrize(("tail", "last"), [("carry", [2, 2]), ("short", [2, 2]), ("drop", None), ("pad", [4, 4])])
def test_case_37_the_last_window_is_scaled_by_what_it_holds(tail: str, last: list[int] | None) -> None:
    """Ten batches, A=4: the window of two that is left is stepped once with its own weight, never with 1/4."""
    job = Job(10, 1, global_batch=4, microbatch=1, tail=tail, epochs=1)
    windows = []
    while update := job.update():
        windows.append((len(update), {step[0].loss_scale for step in update}))
        job.commit()
    wanted = [(4, {1 / 4})] * 2
    if last:
        wanted.append((last[0], {1 / last[1]}))
    assert windows == wanted


def test_case_37_a_window_carried_over_an_epochs_border_is_whole() -> None:
    """With tail="carry" and more epochs the window is filled from the next epoch and stepped once."""
    job = Job(10, 1, order=Sequential(10), global_batch=4, microbatch=1, epochs=2)
    assert job.train() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]

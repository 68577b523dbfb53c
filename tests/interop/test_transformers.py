"""The Hugging Face Trainer and our samplers: what it would deal out again, or skip again, is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import resumable_data as rd
from tests.distributed.ranks import run_ranks
from tests.interop.jobs import error_of, pretend_launched
from tests.interop.test_migrate_page import Data, Model, with_transformers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def sampler_of_ours_in_a_trainer(folder: Path) -> str:
    pretend_launched(ACCELERATE_USE_CPU="1")
    from transformers import Trainer, TrainingArguments

    class OurSampler(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return rd.DistributedSampler(dataset)

    quiet = {"report_to": "none", "disable_tqdm": True, "remove_unused_columns": False}
    args = TrainingArguments(str(folder), max_steps=2, use_cpu=True, **quiet)
    trainer = OurSampler(model=Model(None), args=args, train_dataset=Data(40, "numbers"))
    return error_of(trainer.train)


def test_a_sampler_that_the_trainer_prepares_is_refused(tmp_path: Path) -> None:
    """On two processes half of the samples would never be seen."""
    for message in run_ranks(sampler_of_ours_in_a_trainer, 2, tmp_path):
        assert "Accelerate's prepare() was given a DataLoader over a resumable_data.DistributedSampler" in message


def forget_to_ignore_the_skip(folder: Path) -> str:
    """Train with the page's script to its first checkpoint and die; go on without ignore_data_skip."""
    with_transformers(folder, 20)
    return error_of(lambda: with_transformers(folder, None, ("ignore_data_skip=True, ", "")))


def test_a_second_skip_is_found_at_the_first_step(tmp_path: Path) -> None:
    """What a Trainer skips of what is left goes past the tracked loader, which says so before anything is counted."""
    (message,) = run_ranks(forget_to_ignore_the_skip, 1, tmp_path)
    assert message.startswith("CommitError: expected a step after the 6 batches of update 3, found one after 0 batches")

"""Every combination of the things in a script that decide what a loop was trained on."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.utils.data

from resumable_data.audit import audit_ledger
from resumable_data.tracking import DistributedSampler, track
from tests.unit.tracking.loops import SEED, Numbers, Setup

if TYPE_CHECKING:
    from pathlib import Path

LENGTH, BATCH_SIZE, EPOCHS = 23, 3, 2

MATRIX = [
    pytest.param(*values, marks=[pytest.mark.slow] if values[0] == 4 or values[1] else [])
    for values in itertools.product((0, 2, 4), (None, 4), (False, True), (1, 2), ("end", "break", "exception"))
    if values[0] or values[1] is None  # prefetch_factor needs workers
]


# torch warns where a machine has fewer cores than workers; a machine's cores are not what is tested
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Broken(Exception):
    """Something went wrong in the loop."""


class Job:
    """A script's objects, made anew at each launch."""

    def __init__(
        self, ledger: Path, state: Any, num_workers: int, prefetch: int | None, drop_last: bool, steps: int
    ) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.optimizer = torch.optim.SGD([self.weight], lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.sampler = DistributedSampler(Numbers(LENGTH), 1, 0, seed=SEED)
        self.steps = steps
        dataloader = torch.utils.data.DataLoader(
            Numbers(LENGTH),
            batch_size=BATCH_SIZE,
            sampler=self.sampler,
            drop_last=drop_last,
            num_workers=num_workers,
            prefetch_factor=prefetch,
        )
        self.loader = track(
            dataloader, optimizer=self.optimizer, scaler=self.scaler, accumulation_steps=steps, ledger=ledger
        )
        if state is not None:
            self.loader.load_state_dict(state)

    def run(self, epoch: int, stop: int | None, end: str) -> tuple[list[int], int, int]:
        """One epoch's loop, perhaps broken off after `stop` batches: samples stepped, steps taken, steps skipped."""
        self.sampler.set_epoch(epoch)
        num_batches, trained, window = len(self.loader), [], []
        applied = skipped = 0
        for number, batch in enumerate(self.loader, 1):
            window += batch.tolist()
            is_bad = (applied + skipped) % 3 == 2
            self.scaler.scale((self.weight * (float("inf") if is_bad else 1.0)).sum()).backward()
            if number % self.steps == 0 or number == num_batches:
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
                trained += window
                window = []
                applied, skipped = applied + (not is_bad), skipped + is_bad
            if number == stop and end == "break":
                return trained, applied, skipped
            if number == stop and end == "exception":
                self.left = trained, applied, skipped
                raise Broken
        return trained, applied, skipped


@pytest.mark.parametrize(("num_workers", "prefetch", "drop_last", "steps", "end"), MATRIX)
def test_the_cursor_is_what_was_trained(
    tmp_path: Path, num_workers: int, prefetch: int | None, drop_last: bool, steps: int, end: str
) -> None:
    """Workers, prefetch, drop_last, accumulation, skips, break, exceptions, a restart: all is as plain lists say."""
    setup = Setup(LENGTH, 1, BATCH_SIZE, steps, loader_drops=drop_last)
    options = (num_workers, prefetch, drop_last, steps)
    ledger = tmp_path / "ledger"
    job = Job(ledger, None, *options)
    expected = [sample for batch in setup.batches(0, 0) for sample, _ in batch]
    stop = None if end == "end" else 5
    with contextlib.suppress(Broken):
        job.left = job.run(0, stop, end)
    trained, applied, skipped = job.left
    num_stepped = len(expected) if end == "end" else 5 // steps * steps * BATCH_SIZE
    assert trained == expected[:num_stepped]
    cursor = job.loader.cursor
    assert (cursor.samples, cursor.applied, cursor.skipped) == (num_stepped, applied, skipped)
    assert (cursor.epoch, cursor.offset) == ((1, 0) if end == "end" else (0, num_stepped))

    again = Job(ledger, job.loader.state_dict(), *options)
    for epoch in range(again.loader.cursor.epoch, EPOCHS):
        samples, more_applied, more_skipped = again.run(epoch, None, "end")
        trained += samples
        applied, skipped = applied + more_applied, skipped + more_skipped
    expected += [sample for batch in setup.batches(1, 0) for sample, _ in batch]
    assert trained == expected
    cursor = again.loader.cursor
    assert (cursor.samples, cursor.applied, cursor.skipped) == (len(expected), applied, skipped)
    assert skipped > 0
    report = audit_ledger(ledger)
    assert report.verdict == "proven", report.to_text()
    assert (report.samples, report.updates, report.skipped) == (len(expected), applied + skipped, skipped)

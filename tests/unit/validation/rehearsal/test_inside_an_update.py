"""Checkpoints saved inside an update, with and without its gradients: what comes after is rehearsed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import resumable_data as rd
from resumable_data.checkpoint import InFlightGradients
from resumable_data.validation import Context, Job, OptimizerStep
from tests.unit.validation.rehearsal.moves import UPDATES, Build, failed, move, record, save

DATA = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
GLOBAL_BATCH = 12


def build_job(*, with_gradients: bool, microbatch: int = 3) -> Build:
    def build(context: Context) -> Job:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = rd.ResumableLoader(DATA, global_batch=GLOBAL_BATCH, microbatch=microbatch, ledger=context.ledger)

        def accumulate(microbatch: rd.Microbatch) -> torch.Tensor:
            losses = model(microbatch.data).square().squeeze(1)
            loss: torch.Tensor = (losses * microbatch.weights).sum() * microbatch.loss_scale
            loss.backward()
            return loss

        def step(optimizer_step: OptimizerStep) -> None:
            with optimizer_step():
                optimizer.step()
            optimizer.zero_grad()

        state = {"model": model, "optimizer": optimizer}
        more = {"in_flight": InFlightGradients(model, loader)} if with_gradients else {}
        return Job(state=state | more, loader=loader, accumulate=accumulate, step=step)

    return build


def save_inside(build: Build, folder: Path) -> None:
    """Train for some updates, and save after two microbatches of the next."""
    job = build(Context(folder=folder))
    for microbatch in job.microbatches():
        job.accumulate(microbatch)
        if (microbatch.update, microbatch.index) == (UPDATES, 1):
            break
        if microbatch.is_last:
            job.step(nullcontext)
            job.loader.commit()
    assert job.loader.phase == 6
    save(job, folder)
    record(build, folder)


@pytest.fixture(scope="module", params=[False, True], ids=["without gradients", "with gradients"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    folder = tmp_path_factory.mktemp("run")
    save_inside(build_job(with_gradients=request.param), folder)
    return folder, request.param


def test_a_move_inside_an_update_is_promoted(run: tuple[Path, bool]) -> None:
    """Nothing is replayed or omitted: what is read again was not learned from, and what was learned is not read."""
    folder, with_gradients = run
    verdict = move(build_job(with_gradients=with_gradients, microbatch=2), folder)
    assert verdict.verdict == "promote", verdict.to_text()
    assert verdict.declaration.continuity.kind == "exact"
    samples, coverage = verdict.check("samples"), verdict.check("coverage")
    assert samples is not None
    assert coverage is not None
    position = (UPDATES + with_gradients) * GLOBAL_BATCH
    assert f"12 samples from position {position}" in samples.summary
    assert ("6 of them were delivered before the save" in samples.summary) == (not with_gradients)
    total = position + 20 * GLOBAL_BATCH
    assert coverage.summary == f"cursor proven: {total} samples; ledger proven: {total} samples"


def test_a_part_that_is_left_out_is_found(run: tuple[Path, bool]) -> None:
    """A run that takes what was delivered for learned starts late; one that forgets its gradients learns too little."""
    folder, with_gradients = run
    builds = build_job(with_gradients=with_gradients)

    def made(context: Context) -> Job:
        job = builds(context)

        def load(path: Path) -> None:
            rd.load_checkpoint(path, job.state, loader=job.loader)
            if with_gradients:
                job.model.zero_grad()
            else:
                skipped = rd.Cursor.from_consumed_samples(
                    rd.Shuffle(len(DATA)),
                    consumed_samples=UPDATES * GLOBAL_BATCH + 6,
                    updates=UPDATES,
                    global_batch=GLOBAL_BATCH,
                )
                job.loader.load_state_dict(skipped)

        job.load = load
        return job

    found = failed(move(made, folder))
    assert list(found) == (["first update"] if with_gradients else ["samples", "first update"])
    assert with_gradients or "RD988" in found["samples"]

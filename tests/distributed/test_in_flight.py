"""An update interrupted after any microbatch and finished by other ranks has the gradient that it would have had."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from resumable_data.audit import audit_ledger
from resumable_data.checkpoint import InFlightGradients, load_checkpoint, save_checkpoint
from resumable_data.errors import CheckpointError, ResumableDataError, StateError
from resumable_data.loader import ResumableLoader
from resumable_data.order import Sequential
from tests.distributed.ranks import run_ranks
from tests.distributed.test_save_and_load_meshes import Net
from tests.distributed.test_save_and_load_meshes import make as make_on_mesh
from tests.distributed.training import (
    DataParallel,
    TokenDataset,
    make_model,
    one_process_gradients,
    relative_error,
    row_losses,
)

TOLERANCE = 5e-6
LENGTH, GLOBAL_BATCH = 40, 14
DATA = TokenDataset(LENGTH, max_tokens=3)

VARIANTS = [
    ("fsdp", True, "mean"),
    ("fsdp", True, "sum"),
    ("ddp", True, "mean"),
    ("ddp", False, "mean"),
    ("ddp", False, "sum"),
]


class Job:
    """A model, its optimizer, a loader and the gradients under way."""

    def __init__(self, kind: str, synced: bool, reduction: str, ledger: Path | None = None) -> None:
        self.parallel = DataParallel(kind, synced=synced, reduction=reduction)
        self.model = self.parallel.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        self.loader = ResumableLoader(
            DATA, global_batch=GLOBAL_BATCH, microbatch=1, gradient_reduction=reduction, ledger=ledger
        )
        gradients = InFlightGradients(self.model, self.loader)
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "in_flight": gradients}

    def finish(self, before_next: Any = None) -> float:
        """Train to the end of the update at the cursor; the error of its gradient."""
        expected = list(one_process_gradients(DATA, global_batch=GLOBAL_BATCH))[self.loader.cursor.updates]
        for microbatch in self.loader:
            self.parallel.backward(microbatch)
            if microbatch.is_last:
                break
            if before_next is not None:
                before_next(self)
        self.optimizer.step()
        found = self.parallel.gradients()
        self.loader.commit()
        return relative_error(found, expected)


def interrupt_everywhere(root: str, variants: list[tuple[str, bool, str]]) -> list[float]:
    """Train one update, then save after each microbatch of the next but its last; its errors all the same."""
    errors = []
    for kind, synced, reduction in variants:
        job = Job(kind, synced, reduction)
        job.finish()

        def save(job: Job, name: str = f"{kind} {synced} {reduction}") -> None:
            path = f"{root}/{name}/{job.loader.phase}"
            save_checkpoint(path, job.state, loader=job.loader, checksums="digest")

        errors.append(job.finish(save))
    return errors


def finish_all(root: str, variants: list[tuple[str, bool, str]]) -> list[tuple[str, float]]:
    """Finish what every checkpoint began."""
    errors = []
    for kind, synced, reduction in variants:
        name = f"{kind} {synced} {reduction}"
        for phase in sorted(os.listdir(f"{root}/{name}")):
            job = Job(kind, synced, reduction)
            loaded = load_checkpoint(f"{root}/{name}/{phase}", job.state, loader=job.loader)
            assert (loaded.discarded, job.loader.phase) == (0, int(phase))
            assert all(float(state["step"]) == 1 for state in job.optimizer.state.values())
            errors.append((f"{name} {phase}", job.finish()))
            assert job.loader.cursor.samples == 2 * GLOBAL_BATCH
    return errors


def check_finished(root: str, num_ranks: int, variants: list[tuple[str, bool, str]], num_phases: int) -> None:
    for errors in run_ranks(finish_all, num_ranks, root, variants):
        assert len(errors) == len(variants) * num_phases
        assert not [one for one in errors if not one[1] <= TOLERANCE]


def test_another_number_of_ranks_finishes_an_update(tmp_path: Path) -> None:
    """Interrupted on 4 ranks after each microbatch, finished on 3."""
    variants = [VARIANTS[0], VARIANTS[4]]
    for errors in run_ranks(interrupt_everywhere, 4, str(tmp_path), variants):
        assert max(errors) <= TOLERANCE
    check_finished(str(tmp_path), 3, variants, 3)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [4, 1])
def test_any_number_of_ranks_finishes_an_update(tmp_path: Path, num_ranks: int) -> None:
    """After each microbatch, under FSDP2 and DDP, reduced at each microbatch or at the last, averaged or summed."""
    for errors in run_ranks(interrupt_everywhere, num_ranks, str(tmp_path), VARIANTS):
        assert max(errors) <= TOLERANCE
    for others in (4, 3, 2, 6, 1) if num_ranks == 4 else (2,):
        check_finished(str(tmp_path), others, VARIANTS, 3 if num_ranks == 4 else 13)


def part_of_update(root: str, name: str, before: str, num_microbatches: int | None) -> tuple[int, float]:
    """Go on from a checkpoint and save after some microbatches, or finish; the phase or the samples, and the error."""
    job = Job("fsdp", True, "mean", ledger=Path(root, "ledger"))
    if before:
        load_checkpoint(f"{root}/{before}", job.state, loader=job.loader)
    if num_microbatches is None:
        error = job.finish()
        save_checkpoint(f"{root}/{name}", job.state, loader=job.loader)
        job.loader.close()
        return job.loader.cursor.samples, error
    for _, microbatch in zip(range(num_microbatches), job.loader, strict=False):
        job.parallel.backward(microbatch)
    save_checkpoint(f"{root}/{name}", job.state, loader=job.loader)
    return job.loader.phase, 0.0


@pytest.mark.slow
def test_a_chain_of_interruptions_within_one_update_is_proven(tmp_path: Path) -> None:
    """Begun on 4 ranks, interrupted on 3, finished on 2: the gradient is right, nothing is replayed or discarded."""
    root = str(tmp_path)
    assert run_ranks(part_of_update, 4, root, "1", "", 1)[0] == (4, 0.0)
    assert run_ranks(part_of_update, 3, root, "2", "1", 2)[0] == (10, 0.0)
    for samples, error in run_ranks(part_of_update, 2, root, "3", "2", None):
        assert (samples, error <= TOLERANCE) == (GLOBAL_BATCH, True)
    report = audit_ledger(tmp_path / "ledger")
    assert report.verdict == "proven", report.to_text()
    assert [count.high for count in (report.replayed, report.omitted, report.discarded)] == [0, 0, 0]


def errors_of_misuse(root: str) -> dict[str, str]:
    """What is said where gradients and phase do not belong together."""
    errors = {}

    def attempt(name: str, act: Any) -> None:
        try:
            act()
        except ResumableDataError as error:
            errors[name] = f"{type(error).__name__}: {error}"
        dist.barrier()

    job = Job("fsdp", False, "mean")
    rows = iter(job.loader)
    job.parallel.backward(next(rows))
    attempt("unreduced", lambda: save_checkpoint(f"{root}/unreduced", job.state, loader=job.loader))
    job = Job("fsdp", True, "mean")
    rows = iter(job.loader)
    next(rows)
    attempt("no backward", lambda: save_checkpoint(f"{root}/none", job.state, loader=job.loader))
    attempt("no loader", lambda: save_checkpoint(f"{root}/other", job.state))
    job = Job("fsdp", True, "mean")
    rows = iter(job.loader)
    for _ in range(1 + (dist.get_rank() == 1)):
        next(rows)
    attempt("other microbatches", lambda: save_checkpoint(f"{root}/differ", job.state, loader=job.loader))
    for _ in range(3 - (dist.get_rank() == 1)):
        next(rows)
    attempt("complete", lambda: save_checkpoint(f"{root}/complete", job.state, loader=job.loader))
    return errors


MISUSE = {
    "unreduced": "StateError: expected gradients that FSDP2 has reduced, found some of the module '0' that",
    "no backward": "StateError: expected gradients of the 4 samples of update 0 that were delivered; found none",
    "no loader": "UsageError: expected loader= to be the one that the InFlightGradients 'in_flight' was made with",
    "other microbatches": "DisagreementError: processes disagree on rows of the update at the cursor",
    "complete": "CommitError: gather_phase() expects to be called inside an update",
}


def test_gradients_that_are_not_those_of_the_phase_are_refused(tmp_path: Path) -> None:
    """Each misuse has its own error, on all ranks, and saves nothing."""
    for errors in run_ranks(errors_of_misuse, 4, str(tmp_path)):
        assert errors.keys() == MISUSE.keys()
        for name, expected in MISUSE.items():
            assert errors[name].startswith(expected), errors[name]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def without_gradients(root: str) -> tuple[str, list[int], list[float]]:
    """A checkpoint with gradients loaded without them, and one saved without: what is said, and what is discarded."""
    job = Job("fsdp", True, "mean")
    job.parallel.backward(next(iter(job.loader)))
    save_checkpoint(f"{root}/with", job.state, loader=job.loader)
    del job.state["in_flight"]
    save_checkpoint(f"{root}/without", job.state, loader=job.loader)

    refusal, discarded, errors = "", [], []
    for name, has_gradients, allow in (
        ("with", False, ()),
        ("with", False, ("only_in_checkpoint",)),
        ("without", False, ()),
        ("without", True, ("only_in_program",)),
    ):
        job = Job("fsdp", True, "mean")
        if not has_gradients:
            del job.state["in_flight"]
        try:
            loaded = load_checkpoint(f"{root}/{name}", job.state, loader=job.loader, allow=allow)
        except CheckpointError as error:
            refusal = str(error)
            continue
        discarded.append(loaded.discarded)
        errors.append(job.finish())
    return refusal, discarded, errors


def test_a_phase_without_gradients_is_rolled_back_and_said(tmp_path: Path) -> None:
    """The run goes on at the update's start, and the load says how many rows are read again."""
    for refusal, discarded, errors in run_ranks(without_gradients, 2, str(tmp_path)):
        assert "in_flight.gradients.0.weight: float32 [16, 6] in the checkpoint, nothing in the program" in refusal
        assert discarded == [2, 2, 2]
        assert max(errors) <= TOLERANCE


def plain_dcp(root: str) -> list[tuple[str, float]]:
    """The object in a state of the user's own that DCP saves and loads by itself."""
    job = Job("fsdp", True, "mean")
    job.parallel.backward(next(iter(job.loader)))
    dcp.save({"model": job.model.state_dict(), "loader": job.loader.state_dict(), **_own(job)}, checkpoint_id=root)
    found = []
    for names in ([], [name for name, _ in job.model.named_parameters()]):
        job = Job("fsdp", True, "mean")
        in_flight = job.state["in_flight"]
        state = {"loader": job.loader.state_dict(), "in_flight": in_flight.template(names)}
        dcp.load(state, checkpoint_id=root)
        job.loader.load_state_dict(state["loader"])
        try:
            in_flight.load_state_dict(state["in_flight"])
        except StateError as error:
            found.append((str(error), job.finish()))
            continue
        found.append((f"phase {job.loader.phase}", job.finish()))
    return found


def _own(job: Job) -> dict[str, Any]:
    return {"in_flight": job.state["in_flight"].state_dict()}


def test_dcp_alone_saves_and_loads_it(tmp_path: Path) -> None:
    """With a template that lacks the gradients it is an error, and the run goes on at the update's start."""
    for (refusal, first), (text, second) in run_ranks(plain_dcp, 2, str(tmp_path)):
        assert refusal.startswith("expected a phase of update 0 together with its gradients, found 2 samples and 0")
        assert text == "phase 2"
        assert max(first, second) <= TOLERANCE


def by_hand(root: str, before: str, name: str, reduction: str) -> tuple[float, bool]:
    """A model that nothing wraps, whose gradients a user's loop reduces at the update's end."""
    job = Job("ddp", True, reduction)
    model = make_model()
    gradients = InFlightGradients(model, job.loader)
    state = {"model": model, "in_flight": gradients}
    if before:
        load_checkpoint(f"{root}/{before}", state, loader=job.loader)
    for _, microbatch in zip(range(1 if name else 99), job.loader, strict=False):
        ((row_losses(model, microbatch.data) * microbatch.weights).sum() * microbatch.loss_scale).backward()
        if microbatch.is_last:
            break
    if name:
        save_checkpoint(f"{root}/{name}", state, loader=job.loader)
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        if reduction == "mean":
            parameter.grad /= dist.get_world_size()
    found = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
    expected = next(iter(one_process_gradients(DATA, global_batch=GLOBAL_BATCH)))
    return relative_error(found, expected), not any(isinstance(part, FSDPModule) for part in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_that_the_loop_reduces_itself(tmp_path: Path, reduction: str) -> None:
    """Without FSDP2 and DDP they are reduced over the loader's ranks, and restored so that reducing again is right."""
    root = str(tmp_path)
    run_ranks(by_hand, 3, root, "", "a", reduction)
    run_ranks(by_hand, 4, root, "a", "b", reduction)
    for error, is_plain in run_ranks(by_hand, 2, root, "b", "", reduction):
        assert is_plain
        assert error <= TOLERANCE


ROWS = torch.randn(LENGTH, 6, generator=torch.Generator().manual_seed(3))
MESHES: dict[str, tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]] = {
    "fsdp x tp": ((2, 2), ("dp", "tp"), ("dp",)),
    "hsdp": ((2, 2), ("replicate", "shard"), ("replicate", "shard")),
}


def on_mesh(root: str, kind: str, before: str, name: str) -> float:
    """One microbatch of the first update and a save, or a load and the rest of it; the error of its gradient."""
    model, optimizer = make_on_mesh(kind, 7)
    options: dict[str, Any] = {}
    if kind in MESHES:
        sizes, names, data_axes = MESHES[kind]
        options = {"mesh": init_device_mesh("cpu", sizes, mesh_dim_names=names), "data_axes": data_axes}
    loader = ResumableLoader(ROWS, order=Sequential(LENGTH), global_batch=GLOBAL_BATCH, microbatch=2, **options)
    state = {"model": model, "optimizer": optimizer, "in_flight": InFlightGradients(model, loader)}
    if before:
        load_checkpoint(f"{root}/{before}", state, loader=loader, allow={"mesh"})
    for _, microbatch in zip(range(1 if name else 99), loader, strict=False):
        losses = model(microbatch.data).square().sum(dim=1)
        ((losses * microbatch.weights).sum() * microbatch.loss_scale).backward()
        if microbatch.is_last:
            break
    if name:
        save_checkpoint(f"{root}/{name}", state, loader=loader, checksums="digest")
        return 0.0
    torch.manual_seed(7)
    alone = Net()
    (alone(ROWS[:GLOBAL_BATCH]).square().sum() / GLOBAL_BATCH).backward()
    found = {
        key.removeprefix("module."): value.grad.full_tensor() if isinstance(value.grad, DTensor) else value.grad
        for key, value in model.named_parameters()
    }
    return relative_error(found, {key: value.grad for key, value in alone.named_parameters() if value.grad is not None})


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"),
    [
        ("fsdp x tp", "hsdp"),
        pytest.param("hsdp", "ddp", marks=pytest.mark.slow),
        pytest.param("ddp", "fsdp x tp", marks=pytest.mark.slow),
    ],
)
def test_gradients_of_every_way_of_sharding_load_into_another(tmp_path: Path, saved_by: str, loaded_by: str) -> None:
    """Tensor-parallel peers read the same rows and count once."""
    run_ranks(on_mesh, 4, str(tmp_path), saved_by, "", "a")
    for error in run_ranks(on_mesh, 4, str(tmp_path), loaded_by, "a", ""):
        assert error <= TOLERANCE

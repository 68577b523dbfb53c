"""The recorder in one process: what a line says of a step, and what trouble does."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from resumable_data.cursor import sum_lanes
from resumable_data.errors import UsageError
from resumable_data.loader import ResumableLoader
from resumable_data.order import Sequential, Shuffle
from resumable_data.validation import Trace, TraceRecorder
from resumable_data.validation.job_header import computing_dtype
from resumable_data.validation.probe import ParameterProbe

SAMPLES, FEATURES, GLOBAL_BATCH = 24, 4, 6


def make_data() -> torch.Tensor:
    return torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))


class Training:
    """A linear model of which every number is known."""

    def __init__(self, path: Path, optimizer: Any = torch.optim.AdamW, scaler: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(FEATURES, 1)
        groups = [{"params": [self.model.weight], "name": "weights"}, {"params": [self.model.bias], "lr": 0.5}]
        self.optimizer = optimizer(groups, lr=0.25)
        self.loader = ResumableLoader(make_data(), order=Sequential(SAMPLES), global_batch=GLOBAL_BATCH, microbatch=4)
        self.scaler = scaler
        self.options = options
        self.path = path

    def run(self, num_updates: int = 3, factors: dict[int, float] | None = None, clip: float | None = None) -> Trace:
        with TraceRecorder(
            self.path, self.loader, self.model, self.optimizer, scaler=self.scaler, **self.options
        ) as recorder:
            for microbatch in self.loader:
                loss = (self.model(microbatch.data).square() * microbatch.weights[:, None]).sum()
                loss = loss * microbatch.loss_scale * (factors or {}).get(microbatch.update, 1.0)
                recorder.add(microbatch, loss)
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
                if microbatch.is_last:
                    self.step(recorder, clip)
                    if self.loader.cursor.updates == num_updates:
                        break
        return Trace.read(self.path)

    def step(self, recorder: TraceRecorder, clip: float | None) -> None:
        if clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        with recorder.optimizer_step():
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
        self.optimizer.zero_grad()
        self.loader.commit()


def test_a_line_says_what_the_step_did(tmp_path: Path) -> None:
    """Loss, norms, rates by group, counters and samples of plain SGD are what arithmetic says."""
    training = Training(tmp_path / "trace.jsonl", torch.optim.SGD)
    weight, bias = training.model.weight.detach().clone(), training.model.bias.detach().clone()
    trace = training.run(1)
    (record,) = trace.updates
    data = make_data()[:GLOBAL_BATCH]
    outputs = data @ weight[0] + bias
    gradient = torch.cat([(2 * outputs[:, None] * data).mean(0), (2 * outputs).mean().reshape(1)])
    step = gradient * torch.tensor([0.25] * FEATURES + [0.5])
    assert record.loss == pytest.approx(float(outputs.square().mean()), rel=1e-6)
    assert record.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-6)
    assert record.update_norm == pytest.approx(float(step.norm()), rel=1e-5)
    assert record.learning_rates == {"weights": 0.25, "1": 0.5}
    assert (record.update, record.samples, record.skipped, record.loss_scale) == (0, GLOBAL_BATCH, False, 1.0)
    assert (record.optimizer_steps, record.scheduler_step, record.tokens) == (None, None, None)
    first, second = sum_lanes(np.arange(GLOBAL_BATCH), np.arange(GLOBAL_BATCH))
    assert record.sample_digest == f"{first:016x}{second:016x}"
    assert record.throughput is not None
    assert record.throughput.samples_per_s == pytest.approx(GLOBAL_BATCH / record.throughput.seconds)
    header = trace.header
    assert (header.dtype, header.num_replicas, header.global_batch) == ("float32", 1, GLOBAL_BATCH)
    assert header.run_id == training.loader.cursor.run_id


def test_update_norms_are_left_out_where_they_are_not_asked_for(tmp_path: Path) -> None:
    """With update_norm=False no copy is made and no norm is recorded; the dtype is as it was named."""
    trace = Training(tmp_path / "trace.jsonl", update_norm=False, dtype="bfloat16", precision="autocast").run(2)
    assert [record.update_norm for record in trace.updates] == [None, None]
    assert (trace.header.has_update_norm, trace.header.dtype, trace.header.precision) == (False, "bfloat16", "autocast")


@pytest.mark.parametrize("clip", [None, 1e9])
def test_a_step_that_the_scaler_skips_is_recorded_as_such(tmp_path: Path, clip: float | None) -> None:
    """Gradients are recorded unscaled, whoever unscales them; a skipped step changes nothing and lowers the scale."""
    plain = Training(tmp_path / "plain.jsonl").run(1).updates[0]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    found = Training(tmp_path / "scaled.jsonl", scaler=scaler).run(4, {1: math.inf}, clip).updates
    assert [record.skipped for record in found] == [False, True, False, False]
    assert [record.loss_scale for record in found] == [1024.0, 1024.0, 512.0, 512.0]
    assert [record.optimizer_steps for record in found] == [(1, 1), (1, 1), (2, 2), (3, 3)]
    assert found[0].gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-6)
    assert found[0].loss == plain.loss
    assert not math.isfinite(found[1].gradient_norm)
    assert found[1].update_norm == 0.0
    assert all(math.isfinite(record.gradient_norm) for record in found[2:])


def test_the_norm_is_of_what_the_optimizer_is_given(tmp_path: Path) -> None:
    """After clipping, the norm recorded is the clipped one."""
    records = Training(tmp_path / "trace.jsonl").run(2, clip=0.125).updates
    assert [record.gradient_norm for record in records] == pytest.approx([0.125, 0.125], rel=1e-4)


def test_target_tokens_are_counted(tmp_path: Path) -> None:
    """Tokens are those of the whole update, known ahead or counted by set_targets; the loss is their mean."""
    counts = np.arange(SAMPLES) + 1
    for normalize in ("tokens", "targets"):
        model = nn.Linear(FEATURES, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loader = ResumableLoader(
            make_data(),
            order=Shuffle(SAMPLES),
            global_batch=GLOBAL_BATCH,
            microbatch=4,
            normalize=normalize,
            num_target_tokens=counts if normalize == "tokens" else None,
        )
        recorder = TraceRecorder(tmp_path / f"{normalize}.jsonl", loader, model, optimizer)
        ids = []
        for update in loader.updates():
            ids = [int(one) for microbatch in update.microbatches for one in microbatch.ids]
            if normalize == "targets":
                update.set_targets(int(counts[ids].sum()))
            for microbatch in update:
                loss = model(microbatch.data).mul(0).add(1).sum() * microbatch.loss_scale
                recorder.add(microbatch, loss)
                loss.backward()
            with recorder.optimizer_step():
                optimizer.step()
            update.commit()
            break
        (record,) = Trace.read(tmp_path / f"{normalize}.jsonl").updates
        assert record.tokens == counts[ids].sum()
        assert record.loss == pytest.approx(GLOBAL_BATCH / counts[ids].sum())


def test_an_update_begun_before_is_left_out(tmp_path: Path) -> None:
    """A launch that goes on inside an update records from the next one on."""
    first = Training(tmp_path / "first.jsonl")
    next(iter(first.loader))
    phase = first.loader.gather_phase()
    second = Training(tmp_path / "second.jsonl")
    second.loader.load_state_dict(first.loader.state_dict())
    second.loader.start_inside(phase)
    assert [record.update for record in second.run(3).updates] == [1, 2]


def test_trouble_with_the_file_ends_the_trace_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disk that fails is logged once; training goes on."""
    (tmp_path / "file").write_text("")
    training = Training(tmp_path / "file" / "trace.jsonl")
    with caplog.at_level(logging.ERROR), pytest.raises(Exception, match="cannot read"):
        training.run(3)  # reading the trace is what fails
    assert training.loader.cursor.updates == 3
    assert [record.message.split(":")[0] for record in caplog.records] == ["the trace ends before update 0"]


def test_wrong_use_is_told(tmp_path: Path) -> None:
    """A taken name, a missing add(), a loss that is no number, and simulated ranks are errors."""
    training = Training(tmp_path / "trace.jsonl")
    recorder = TraceRecorder(training.path, training.loader, training.model, training.optimizer)
    with pytest.raises(UsageError, match="expects add"), recorder.optimizer_step():
        training.optimizer.step()
    microbatch = next(iter(training.loader))
    with pytest.raises(UsageError, match="one element"):
        recorder.add(microbatch, torch.ones(2))
    training.path.write_text("")
    with pytest.raises(UsageError, match="is there already"):
        TraceRecorder(training.path, training.loader, training.model, training.optimizer)
    simulated = ResumableLoader(make_data(), global_batch=6, microbatch=4, rank=1, num_replicas=2)
    with pytest.raises(UsageError, match="rank 1 of 2 by its arguments"):
        TraceRecorder(tmp_path / "b.jsonl", simulated, training.model, training.optimizer)


def test_norms_of_large_tensors_are_those_of_their_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into blocks, of any dtype and layout, and with values that float32 cannot square, norms are exact."""
    monkeypatch.setattr("resumable_data.validation.probe._CPU_BLOCK", 7)
    model = nn.ParameterDict(
        {
            "large": nn.Parameter(torch.tensor([3e30, 4e30])),
            "narrow": nn.Parameter(torch.full((5, 5), 0.5, dtype=torch.bfloat16)),
            "across": nn.Parameter(torch.arange(12.0).reshape(3, 4).t()),
            "complex": nn.Parameter(torch.tensor([3 + 4j])),
            "unused": nn.Parameter(torch.ones(3)),
        }
    )
    for name, parameter in model.items():
        parameter.grad = None if name == "unused" else parameter.detach().clone()
    probe = ParameterProbe(model, None)
    assert math.sqrt(probe.gradient_square()) == pytest.approx(5e30, rel=1e-6)
    model["large"].grad = None
    squares = 25 * 0.25 + sum(k * k for k in range(12)) + 25
    assert probe.gradient_square() == pytest.approx(squares, rel=1e-12)
    probe.remember()
    with torch.no_grad():
        model["narrow"][0, 0] = 1.5
        model["across"] += 2
    assert probe.change_square() == pytest.approx(1 + 12 * 4, rel=1e-12)
    model["narrow"].grad = torch.full((5, 5), math.nan, dtype=torch.bfloat16)
    assert math.isnan(probe.gradient_square())


def test_the_dtype_is_what_the_device_multiplies_in() -> None:
    """The parameters' coarsest dtype, or what an accelerator makes float32 products of."""
    narrow = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).double())
    assert computing_dtype(narrow, "cpu") == computing_dtype(narrow, "cuda") == "bfloat16"
    wide = nn.Linear(2, 2)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert (computing_dtype(wide, "cuda"), computing_dtype(wide, "cpu")) == ("tf32", "float32")
        torch.set_float32_matmul_precision("highest")
        assert computing_dtype(wide, "cuda") == "float32"
    finally:
        torch.set_float32_matmul_precision(before)

"""A small language model, its average and its teacher, whose move is rehearsed, spoiled in one way at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from resumable_data.checkpoint import InFlightGradients, Probe, RandomStates, load_checkpoint, save_checkpoint
from resumable_data.loader import Microbatch, ResumableLoader
from resumable_data.validation import Context, Job, Verdict, rehearse

WORDS, LENGTH, WIDTH = 32, 8, 16
BEFORE, UPDATES, GLOBAL_BATCH = 5, 20, 12


class Model(nn.Module):
    """Predicts the next word; what reads words writes them too. Two layers are of one shape, so they can be swapped."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(WORDS, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("scale", torch.linspace(0.9, 1.1, width))
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        inner = self.second(torch.nn.functional.gelu(self.first(hidden))) * self.scale
        logits: torch.Tensor = self.head(self.dropout(self.norm(hidden + inner)))
        return logits


def make_data(seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(WORDS, (500, 1), generator=generator)
    steps = torch.randint(1, 4, (500, LENGTH), generator=generator).cumsum(1)
    return torch.cat([first, (first + steps) % WORDS], 1)


@dataclass
class Parts:
    """What a job is made of, and what a sabotage may change of it."""

    kind: str = "fsdp"
    options: dict[str, Any] = field(default_factory=dict)
    is_tied: bool = True
    scale_dtype: torch.dtype = torch.float32
    example_seed: int = 5
    evaluation_dropout: float = 0.0
    factor: float = 1.0
    times: int = 1
    steps_scheduler_by: int = 1
    has_in_flight: bool = False
    without: tuple[str, ...] = ()
    load: Callable[[Built, Path], object] | None = None
    after_load: Callable[[Built], object] | None = None


class Built:
    """A job and its parts."""

    def __init__(self, parts: Parts, context: Context) -> None:
        self.parts = parts
        model: Any = Model(WIDTH // 2 if context.is_synthetic else WIDTH)
        model.scale = model.scale.to(parts.scale_dtype)
        if not parts.is_tied:
            model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
        self.teacher = Model(WIDTH // 2).requires_grad_(False).eval()
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        both: tuple[Any, Any] = model, self.average.module
        if parts.kind == "tp":
            mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
            parts = replace(parts, options={"mesh": mesh, "data_axes": "dp", **parts.options})
            for one in both:
                parallelize_module(one, mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
                fully_shard(one, mesh=mesh["dp"])
        elif parts.kind == "fsdp":
            for one in both:
                fully_shard(one.first)
                fully_shard(one)
        elif parts.kind == "ddp":
            model = DistributedDataParallel(model)
        self.model: Any = model
        decayed = [one for one in model.parameters() if one.ndim > 1]
        rest = [one for one in model.parameters() if one.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0, "lr": 1e-3}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda update: 1 / (1 + 0.02 * update))
        self.scheduler = schedule
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        arguments = {"global_batch": GLOBAL_BATCH, "microbatch": 2, "ledger": context.ledger, **parts.options}
        self.loader = ResumableLoader(make_data(), **arguments)
        state: dict[str, Any] = {
            "average": self.average,
            "teacher": self.teacher,
            "model": model,
            "optimizer": self.optimizer,
            "scheduler": schedule,
            "scaler": self.scaler,
            "rng": RandomStates(self.loader, on_change="reseed"),
        }
        if parts.has_in_flight:
            state["in_flight"] = InFlightGradients(model, self.loader)
        self.examples = make_data(parts.example_seed)[:4]
        self.job = Job(
            state={name: part for name, part in state.items() if name not in parts.without},
            loader=self.loader,
            accumulate=self.accumulate,
            step=self.step,
            probe=Probe(self.examples[:, :-1], self.model),
            evaluate=self.evaluate,
            log=lambda: None,
            log_every=5,
            evaluate_every=10,
            load=self.load if parts.load or parts.after_load else None,
        )

    def load(self, path: Path) -> None:
        if self.parts.load is not None:
            self.parts.load(self, path)
        else:
            load_checkpoint(path, self.job.state, loader=self.loader)
        if self.parts.after_load is not None:
            with torch.no_grad():
                self.parts.after_load(self)

    def losses(self, words: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        logits = nn.functional.dropout(self.model(words[:, :-1]), dropout)
        of_words = nn.functional.cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="none")
        apart = (logits - self.teacher(words[:, :-1])).square().mean((1, 2))
        losses: torch.Tensor = of_words.mean(1) + 0.01 * apart
        return losses

    def accumulate(self, microbatch: Microbatch) -> torch.Tensor:
        losses = self.losses(microbatch.data)
        for number in range(self.parts.times):
            losses = self.losses(microbatch.data) if number else losses
            loss = (losses * microbatch.weights).sum() * microbatch.loss_scale * self.parts.factor
            self.scaler.scale(loss).backward()
        return loss

    def step(self, optimizer_step: Any) -> bool:
        self.scaler.unscale_(self.optimizer)
        with optimizer_step():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        for _ in range(self.parts.steps_scheduler_by):
            self.scheduler.step()
        self.optimizer.zero_grad()
        self.average.update_parameters(self.model)
        return True

    def evaluate(self) -> float:
        was = self.model.training
        self.model.eval()
        with torch.no_grad():
            losses = self.losses(self.examples, self.parts.evaluation_dropout)
        self.model.train(was)
        return float(losses.mean())


def build(parts: Parts) -> Callable[[Context], Job]:
    return lambda context: Built(parts, context).job


def save_and_record(
    folder: str, kind: str = "fsdp", num_repeats: int = 2, options: dict[str, Any] | None = None
) -> list[str]:
    """Train, save, and record the control and repeats of what comes after, on the ranks that save."""
    parts = Parts(kind, options or {})
    built = Built(parts, Context(folder=Path(folder)))
    for _, _ in zip(range(BEFORE), built.job.train(), strict=False):
        pass
    save_checkpoint(f"{folder}/checkpoint", built.job.state, loader=built.loader, probe=built.job.probe)
    built.loader.close()
    names = ["control", *(f"repeat-{number}" for number in range(num_repeats))]
    return [rehearse(build(parts), f"{folder}/checkpoint", record=f"{folder}/{name}.jsonl").to_text() for name in names]


def save_inside_and_record(folder: str, parts: Parts) -> list[str]:
    """The same of a checkpoint that was saved after the first microbatch of an update."""
    built = Built(parts, Context(folder=Path(folder)))
    for microbatch in built.loader:
        built.accumulate(microbatch)
        if microbatch.update == BEFORE:
            break
        if microbatch.is_last:
            built.step(nullcontext)
            built.loader.commit()
    save_checkpoint(f"{folder}/checkpoint", built.job.state, loader=built.loader, probe=built.job.probe)
    built.loader.close()
    return [
        rehearse(build(parts), f"{folder}/checkpoint", record=f"{folder}/{name}.jsonl").to_text()
        for name in ("control", "repeat-0")
    ]


def rehearse_here(folder: str, parts: Parts, **options: Any) -> Verdict:
    repeats = sorted(Path(folder).glob("repeat-*.jsonl"))
    arguments = {"control": f"{folder}/control.jsonl", "repeats": repeats, **options}
    return rehearse(build(parts), f"{folder}/checkpoint", **arguments)


def fail_alone(folder: str) -> Verdict:
    """The second process fails in its own code, while the first waits for it in a collective call of its own."""

    def accumulate(microbatch: Microbatch) -> torch.Tensor:
        if dist.get_rank() == 1:
            raise ZeroDivisionError("a fault in the user's code")
        dist.barrier()
        raise AssertionError("nobody comes here")

    def build_faulty(context: Context) -> Job:
        job = Built(Parts(), context).job
        job.accumulate = accumulate
        return job

    return rehearse(build_faulty, f"{folder}/checkpoint")


def clean(folder: str, kind: str = "fsdp") -> Verdict:
    return rehearse_here(folder, Parts(kind))

"""A small language model trained from a checkpoint, traced, and sabotaged in one way at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from resumable_data.checkpoint import load_checkpoint, save_checkpoint
from resumable_data.loader import ResumableLoader
from resumable_data.validation import TraceRecorder, Watch

WORDS, LENGTH, WIDTH = 32, 8, 16
BEFORE, UPDATES, GLOBAL_BATCH = 5, 20, 12


class TiedModel(nn.Module):
    """Predicts the next word; what reads words writes them too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        logits: torch.Tensor = self.head(self.norm(hidden + self.inner(hidden)))
        return logits


def make_data() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    # a word depends on the one before it, so that there is something to learn
    first = torch.randint(WORDS, (500, 1), generator=generator)
    steps = torch.randint(1, 4, (500, LENGTH), generator=generator).cumsum(1)
    return torch.cat([first, (first + steps) % WORDS], 1)


class Job:
    """What is trained, and by what."""

    def __init__(self, kind: str = "fsdp") -> None:
        self.model: Any = TiedModel()
        if kind == "ddp":
            self.model = DistributedDataParallel(self.model)
        elif kind == "fsdp":
            fully_shard(self.model.inner)
            fully_shard(self.model)
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda update: 1 / (1 + 0.02 * update))
        self.loader = ResumableLoader(make_data(), global_batch=GLOBAL_BATCH, microbatch=3)
        self.sabotage = ""

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def train(self, num_updates: int, trace: str = "", recorder: TraceRecorder | Watch | None = None) -> None:
        if trace:
            recorder = TraceRecorder(trace, self.loader, self.model, self.optimizer, scheduler=self.scheduler)
        stop = self.loader.cursor.updates + num_updates
        for microbatch in self.loader:
            for _ in range(1 + (self.sabotage == "gradient accumulated twice")):
                loss = self.loss(microbatch)
                loss.backward()
            if recorder:
                recorder.add(microbatch, loss)
            if microbatch.is_last:
                if recorder:
                    with recorder.optimizer_step():
                        self.optimizer.step()
                else:
                    self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                self.loader.commit()
                if self.loader.cursor.updates == stop:
                    break
        if recorder:
            recorder.close()

    def loss(self, microbatch: Any) -> torch.Tensor:
        logits = self.model(microbatch.data[:, :-1])
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), microbatch.data[:, 1:], reduction="none").mean(1)
        factor = 4 if self.sabotage == "loss weight off by dp size" else 1
        loss: torch.Tensor = (losses * microbatch.weights).sum() * microbatch.loss_scale * factor
        return loss

    @torch.no_grad()
    def spoil(self, sabotage: str) -> None:
        """Do one thing wrong after the load."""
        self.sabotage = sabotage
        states = list(self.optimizer.state.values())
        if sabotage == "weights rounded to bfloat16":
            for parameter in self.model.parameters():
                parameter.copy_(parameter.bfloat16())
        elif sabotage == "one moment zeroed":
            bias = next(p for name, p in self.model.named_parameters() if name.endswith("inner.0.bias"))
            self.optimizer.state[bias]["exp_avg_sq"].zero_()
        elif sabotage == "step counter one too high":
            for state in states:
                state["step"] += 1
        elif sabotage == "scheduler one update ahead":
            self.scheduler.step()
        elif sabotage == "weight decay dropped":
            for group in self.optimizer.param_groups:
                group["weight_decay"] = 0.0
        elif sabotage == "cursor one sample late":
            cursor = self.loader.cursor
            late = msgspec.structs.replace(cursor, offset=cursor.offset + 1, samples=cursor.samples + 1, coverage=())
            self.loader.load_state_dict(late)


def control(folder: str, num_repeats: int = 2, kind: str = "fsdp", updates: int = UPDATES) -> None:
    """Train, save, and trace what comes after, again and again from the checkpoint."""
    job = Job(kind)
    job.train(BEFORE)
    save_checkpoint(f"{folder}/checkpoint", job.state, loader=job.loader)
    job.train(updates, f"{folder}/control.jsonl")
    for number in range(num_repeats):
        again(folder, f"repeat-{number}", "", kind, updates)


def again(folder: str, name: str, sabotage: str = "", kind: str = "fsdp", updates: int = UPDATES) -> None:
    """Trace what comes after the checkpoint, on whatever ranks these are."""
    job = Job(kind)
    load_checkpoint(f"{folder}/checkpoint", job.state, loader=job.loader)
    job.spoil(sabotage)
    job.train(updates, f"{folder}/{name}.jsonl")


def candidates(folder: str, names: dict[str, str], kind: str = "fsdp", updates: int = UPDATES) -> None:
    """Traces by name, each with one sabotage or none."""
    for name, sabotage in names.items():
        again(folder, name, sabotage, kind, updates)

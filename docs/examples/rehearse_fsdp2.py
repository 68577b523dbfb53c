"""Train a small language model under FSDP2, in a way that its move to other ranks can be rehearsed.

Train and save:  torchrun --standalone --nproc-per-node 4 rehearse_fsdp2.py --out run --updates 10
Rehearse:        see docs/rehearsal.md
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from resumable_data import Microbatch, ResumableLoader, latest_checkpoint, load_checkpoint, save_checkpoint
from resumable_data.validation import Context, Job, OptimizerStep, Probe
from torch import nn
from torch.distributed.fsdp import fully_shard

WORDS, LENGTH = 64, 16
TEXT = torch.randint(1, 4, (2000, LENGTH + 1), generator=torch.Generator().manual_seed(0)).cumsum(1) % WORDS
TRAINING, EVALUATION = TEXT[:-100], TEXT[-100:]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + nn.functional.gelu(self.inner(self.norm(hidden)))


class Model(nn.Module):
    """Predicts the next word; gives logits as (rows * words, WORDS)."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(words)).flatten(0, 1))


def sharded(model: Model) -> Any:
    for part in (*model.blocks, model):
        fully_shard(part)
    return model


def losses(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    """Of each row: (rows,)."""
    words = words.to(next(model.parameters()).device)
    of_words = nn.functional.cross_entropy(model(words[:, :-1]), words[:, 1:].flatten(), reduction="none")
    return of_words.view(len(words), -1).mean(1)


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    model.eval()
    loss = float(losses(model, EVALUATION).mean())
    model.train()
    return loss


def build(context: Context) -> Job:
    model = sharded(Model(*((16, 1) if context.is_synthetic else (64, 3))).to(context.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + 0.01 * update))
    loader = ResumableLoader(TRAINING, global_batch=24, microbatch=3, ledger=context.ledger)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def accumulate(microbatch: Microbatch) -> torch.Tensor:
        model.set_requires_gradient_sync(microbatch.is_last)
        rows = losses(model, microbatch.data) * microbatch.to(context.device).weights
        loss = rows.sum() * microbatch.loss_scale
        loss.backward()
        return loss

    def step(optimizer_step: OptimizerStep) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer_step():
            optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    job = Job(state=state, loader=loader, accumulate=accumulate, step=step)
    job.probe = Probe(EVALUATION[:4, :-1].to(context.device), model)
    job.evaluate, job.evaluate_every = lambda: evaluate(model), 10
    job.log, job.log_every = lambda: print(f"rank {context.rank}: update {loader.cursor.updates}"), 10
    return job


def main(out: Path, updates: int) -> None:
    dist.init_process_group("gloo")
    job = build(Context(folder=out))
    if (checkpoint := latest_checkpoint(out / "checkpoints")) is not None:
        load_checkpoint(checkpoint, job.state, loader=job.loader)
    for _ in job.train():
        if (done := job.loader.cursor.updates) % updates == 0:
            save_checkpoint(out / "checkpoints" / str(done), job.state, loader=job.loader, probe=job.probe)
            break
    job.loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory of the run")
    parser.add_argument("--updates", type=int, default=10, help="updates until it saves and ends")
    main(**vars(parser.parse_args()))

"""Train a small language model with FSDP2, and tensor parallelism where --tp asks for it. See docs/moving.md.

torchrun --standalone --nproc-per-node 4 move_mesh.py --out run --tp 2 --updates 10
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from resumable_data import Microbatch, ResumableLoader, latest_checkpoint, load_checkpoint, save_checkpoint
from resumable_data.validation import Context, Job, OptimizerStep, watch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WORDS, LENGTH = 64, 16
TEXT = torch.randint(1, 4, (2000, LENGTH + 1), generator=torch.Generator().manual_seed(0)).cumsum(1) % WORDS


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


def sharded(mesh: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 32), Block(32), Block(32), nn.Linear(32, WORDS))
    for part in model if mesh["tp"].size() > 1 else ():
        if isinstance(part, Block):
            parallelize_module(part, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"])


def parse(arguments: Any = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="directory of the run")
    parser.add_argument("--tp", type=int, default=1, help="ranks that each layer is split over")
    parser.add_argument("--updates", type=int, default=10, help="updates until it saves and ends")
    parser.add_argument("--migration", type=Path, help="what was declared of the move")
    parser.add_argument("--control", type=Path, help="watch the first updates against this trace")
    parser.add_argument("--repeat", type=Path, action="append", default=[], help="the control once more")
    return parser.parse_args(arguments)


def build(context: Context) -> Job:
    tp = parse(context.arguments).tp
    mesh = init_device_mesh(context.device.type, (context.world_size // tp, tp), mesh_dim_names=("dp", "tp"))
    model = sharded(mesh).to(context.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + 0.01 * update))
    loader = ResumableLoader(TEXT, global_batch=25, microbatch=4, mesh=mesh, data_axes="dp", ledger=context.ledger)

    def accumulate(microbatch: Microbatch) -> torch.Tensor:
        words = microbatch.to(context.device)
        logits = model(words.data[:, :-1].flatten())
        of_words = nn.functional.cross_entropy(logits, words.data[:, 1:].flatten(), reduction="none")
        loss = (of_words.view(-1, LENGTH).mean(1) * words.weights).sum() * words.loss_scale
        loss.backward()
        return loss

    def step(optimizer_step: OptimizerStep) -> None:
        with optimizer_step():
            optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return Job(state=state, loader=loader, accumulate=accumulate, step=step)


def main(args: argparse.Namespace, arguments: tuple[str, ...]) -> None:
    dist.init_process_group("gloo")
    job = build(Context(folder=args.out, arguments=arguments))
    if (checkpoint := latest_checkpoint(args.out / "checkpoints")) is not None:
        load_checkpoint(checkpoint, job.state, loader=job.loader, migration=args.migration)
    recorder = None
    if args.control is not None:
        recorder = watch(
            job.loader,
            args.control,
            model=job.model,
            optimizer=job.optimizer,
            scheduler=job.schedulers["scheduler"],
            repeats=args.repeat,
        )
    end = job.loader.cursor.updates + args.updates
    for _ in job.train(recorder):
        if job.loader.cursor.updates == end:
            save_checkpoint(args.out / "checkpoints" / str(end), job.state, loader=job.loader)
            break
    job.loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse(), tuple(sys.argv[1:]))

"""Train a diffusion model of points on a spiral: a step count and no epochs, one global batch in equal parts.

Run it with torchrun --standalone --nproc-per-node 4; sharded by FSDP2, saved by DCP.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from resumable_data import ResumableSampler, Shuffle, track
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


def spiral(samples: int) -> TensorDataset:
    """(samples, 2) noisy points."""
    turn = 3 * math.pi * torch.rand(samples, 1, generator=torch.Generator().manual_seed(0)).sqrt()
    return TensorDataset(torch.cat([turn.cos(), turn.sin()], dim=1) * turn / 10)


class Denoiser(nn.Module):
    """Guesses the noise in (rows, 2) points at (rows, 1) times from 0 to 1."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.time = nn.Linear(16, width)
        self.layers = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))
        self.points = nn.Linear(2, width)

    def forward(self, points: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        waves = times * math.pi * 2 ** torch.arange(8)
        return self.layers(self.points(points) + self.time(torch.cat([waves.sin(), waves.cos()], dim=1)))


def denoising_losses(model: nn.Module, points: torch.Tensor) -> torch.Tensor:
    """The loss of each row at a random time."""
    times, noise = torch.rand(len(points), 1), torch.randn_like(points)
    noisy = points * (times * math.pi / 2).cos() + noise * (times * math.pi / 2).sin()
    return (model(noisy, times) - noise).square().mean(dim=1)


class Training(Stateful):
    """Model and optimizer, as a checkpoint takes them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.parts = (model, optimizer)

    def state_dict(self) -> dict[str, Any]:
        model_state, optimizer_state = get_state_dict(*self.parts)
        return {"model": model_state, "optimizer": optimizer_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(*self.parts, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main(out: Path, global_batch: int, max_steps: int, samples: int, save_every: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = spiral(samples)
    torch.manual_seed(0)
    model = Denoiser()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sampler = ResumableSampler(Shuffle(len(data)), global_batch=global_batch, microbatch=-(-global_batch // world))
    loader = track(DataLoader(data, batch_sampler=sampler, num_workers=1), optimizer=optimizer, ledger=out / "ledger")

    state: dict[str, Any] = {"training": Training(model, optimizer), "step": 0, "loader": loader}
    if complete := sorted(path.parent for path in out.glob("*/.metadata")):
        dcp.load(state, checkpoint_id=complete[-1])
    step = state["step"]
    torch.manual_seed(step * world + rank)  # other noise on each rank
    while step < max_steps:
        for batch in loader:
            losses = denoising_losses(model, batch[0])
            loss = losses.sum() * sampler.loss_scale
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state["step"] = step = step + 1
            if step % save_every == 0:
                dcp.save(state, checkpoint_id=out / f"{step:08d}")
                if rank == 0:
                    print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == max_steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoints")
    parser.add_argument("--global-batch", type=int, default=32, help="samples of all ranks in one step")
    parser.add_argument("--max-steps", type=int, default=60)
    parser.add_argument("--samples", type=int, default=803)
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    main(**vars(parser.parse_args()))

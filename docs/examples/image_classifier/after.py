"""Fine-tune an image classifier: epochs, and a learning rate that follows the fraction of an epoch.

The images are generated, and an epoch takes a second. Run it with torchrun --standalone --nproc-per-node 3.
"""

import argparse
import math
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from resumable_data import DistributedSampler, track
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SIZE, CLASSES = 16, 4


class Stripes(Dataset[tuple[torch.Tensor, int]]):
    """Noisy stripes of SIZE x SIZE pixels; their direction is the class."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % CLASSES
        angle = math.pi * label / CLASSES
        rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        noise = torch.randn(1, SIZE, SIZE, generator=torch.Generator().manual_seed(index))
        return torch.sin(rows * math.sin(angle) + columns * math.cos(angle)) + noise, label


class Classifier(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.GELU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.GELU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)),
        )


def adjust_learning_rate(opt: torch.optim.Optimizer, epoch: float, epochs: int) -> None:
    """Linear over the first half epoch, then half a cosine down to 0."""
    rate = 5e-3 * min(epoch / 0.5, 0.5 + 0.5 * math.cos(math.pi * epoch / epochs))
    for group in opt.param_groups:
        group["lr"] = rate


def save_on_main(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint on rank 0, whole or not at all."""
    if dist.get_rank() == 0:
        torch.save(state, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)


def main(out: Path, epochs: int, batch_size: int, samples: int, save_every: int) -> None:
    dist.init_process_group("gloo")
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    data = Stripes(samples)
    sampler = DistributedSampler(data, shuffle=True)
    model = DistributedDataParallel(Classifier())
    opt = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    loader = track(DataLoader(data, batch_size, sampler=sampler, num_workers=1), optimizer=opt, ledger=out / "ledger")

    if (checkpoint := out / "checkpoint.pt").exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    for epoch in range(loader.cursor.epoch, epochs):
        sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            adjust_learning_rate(opt, loader.cursor.epoch + loader.cursor.offset / len(data), epochs)
            loss = nn.functional.cross_entropy(model(images), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % save_every == save_every - 1:
                state = {
                    "model": model.state_dict(),
                    "optimizer": opt.state_dict(),
                    "loader": loader.state_dict(),
                }
                save_on_main(checkpoint, state)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: the last loss is {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="samples of one rank in one step")
    parser.add_argument("--samples", type=int, default=603)
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    main(**vars(parser.parse_args()))

"""Train a model of which user clicks on what: rank 0 writes numbered checkpoints with torch.save, all ranks read them.

Run it with torchrun --standalone --nproc-per-node 3.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from resumable_data import DistributedSampler, track
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

USERS, ITEMS, WIDTH = 200, 300, 8


def clicks(samples: int) -> TensorDataset:
    """Users, items and whether there was a click: (samples,) each."""
    generator = torch.Generator().manual_seed(0)
    taste, kind = torch.randn(USERS, 2, generator=generator), torch.randn(ITEMS, 2, generator=generator)
    users = torch.randint(USERS, (samples,), generator=generator)
    items = torch.randint(ITEMS, (samples,), generator=generator)
    chances = (taste[users] * kind[items]).sum(dim=1).sigmoid()
    return TensorDataset(users, items, torch.bernoulli(chances, generator=generator))


class ClickModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, WIDTH), nn.Embedding(ITEMS, WIDTH)
        self.layers = nn.Sequential(nn.Linear(3 * WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        user, item = self.users(users), self.items(items)
        return self.layers(torch.cat([user, item, user * item], dim=1)).squeeze(1)


def main(out: Path, epochs: int, batch_size: int, samples: int, save_every: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    data = clicks(samples)
    sampler = DistributedSampler(data, shuffle=True)
    model = DistributedDataParallel(ClickModel())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = track(DataLoader(data, batch_size, sampler=sampler, num_workers=2), optimizer=opt, ledger=out / "ledger")
    scheduler = CosineAnnealingLR(opt, T_max=epochs * len(loader))

    step = 0
    if checkpoints := sorted(out.glob("step-*.pt")):
        state = torch.load(checkpoints[-1], weights_only=True)
        model.module.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        step = state["step"]
        loader.load_state_dict(state["loader"])
    for epoch in range(loader.cursor.epoch, epochs):
        sampler.set_epoch(epoch)
        for users, items, clicked in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), clicked)
            opt.zero_grad()
            loss.backward()
            opt.step()
            scheduler.step()
            step += 1
            if step % save_every:
                continue
            loader.check_agreement()
            if rank == 0:
                state = {
                    "model": model.module.state_dict(),
                    "optimizer": opt.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "step": step,
                    "loader": loader.state_dict(),
                }
                torch.save(state, out / "unfinished")
                os.replace(out / "unfinished", out / f"step-{step:08d}.pt")
        if rank == 0:
            print(f"epoch {epoch}: the last loss is {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of one rank in one step")
    parser.add_argument("--samples", type=int, default=1603)
    parser.add_argument("--save-every", type=int, default=8, metavar="STEPS")
    main(**vars(parser.parse_args()))

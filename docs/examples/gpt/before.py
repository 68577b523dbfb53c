"""Train a byte-level GPT on Python source: accumulated gradients, half precision with a GradScaler.

Run it with torchrun --standalone --nproc-per-node 3.
"""

import argparse
import math
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

LENGTH, WIDTH, HEADS, DEPTH = 32, 32, 4, 2


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        )
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:  # (rows, LENGTH + 1) bytes -> their mean loss
        x = self.bytes(windows[:, :-1].long()) + self.places
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), windows[:, 1:].flatten().long())


def save_on_main(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint on rank 0, whole or not at all."""
    if dist.get_rank() == 0:
        torch.save(state, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)


def main(
    out: Path, epochs: int, batch_size: int, accumulation: int, init_scale: float, samples: int, save_every: int
) -> None:
    dist.init_process_group("gloo")
    assert accumulation % dist.get_world_size() == 0, "expected as many batches of a step on all ranks"
    accumulation //= dist.get_world_size()
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    text = bytearray(Path(argparse.__file__).read_bytes())
    data = TensorDataset(torch.frombuffer(text, dtype=torch.uint8).unfold(0, LENGTH + 1, LENGTH)[:samples])
    sampler = DistributedSampler(data, shuffle=True)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    loader = DataLoader(data, batch_size, sampler=sampler, drop_last=True)

    step = 0
    start_epoch = 0
    if (checkpoint := out / "checkpoint.pt").exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        step = state["step"]
        start_epoch = state["epoch"]
    for epoch in range(start_epoch, epochs):
        sampler.set_epoch(epoch)
        for number, (windows,) in enumerate(loader, 1):
            is_step = number % accumulation == 0 or number == len(loader)
            with nullcontext() if is_step else model.no_sync():
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = model(windows)
                scaler.scale(loss / accumulation).backward()
            if not is_step:
                continue
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * min((step + 1) / 10, math.sqrt(10 / (step + 1)))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step += 1
            if step % save_every == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict(),
                    "step": step,
                    "epoch": epoch,
                }
                save_on_main(checkpoint, state)
                if dist.get_rank() == 0:
                    print(f"step {step}: loss {loss.item():.4f}, scale {scaler.get_scale():.3g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4, help="windows of one rank at once")
    parser.add_argument("--accumulation", type=int, default=6, help="batches of all ranks in one step")
    parser.add_argument("--init-scale", type=float, default=2.0**16, help="of the loss, for half precision")
    parser.add_argument("--samples", type=int, default=403)
    parser.add_argument("--save-every", type=int, default=5, metavar="STEPS")
    main(**vars(parser.parse_args()))

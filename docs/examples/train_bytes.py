"""Train a small byte-level transformer, and resume it on any number of processes.

torchrun --standalone --nproc-per-node 4 train_bytes.py --out run
torchrun --standalone --nproc-per-node 3 train_bytes.py --out run      # goes on where the 4 stopped
"""

import argparse
import hashlib
import json
import math
import os
import sysconfig
from pathlib import Path
from typing import Any

import resumable_data as rd
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import LambdaLR

LENGTH, WIDTH, HEADS, DEPTH = 64, 64, 4, 2  # of the model


def byte_windows(max_samples: int | None) -> tuple[torch.Tensor, str]:
    """The standard library's packages as (N, LENGTH + 1) bytes, each row's last byte the next row's first; a hash."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*.py"))
    text = b"".join((root / name).read_bytes() for name in names if "-packages/" not in name)
    windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, LENGTH + 1, LENGTH)
    return windows[:max_samples], f"{LENGTH} bytes of {hashlib.sha256(text).hexdigest()[:16]}"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ByteTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))

    def forward(self, windows: torch.Tensor) -> torch.Tensor:  # (rows, LENGTH + 1) bytes -> (rows,) losses
        logits = self.head(self.blocks(self.bytes(windows[:, :-1].long()) + self.places))
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), windows[:, 1:].long(), reduction="none")
        return losses.mean(dim=1)


def main(out: Path, epochs: int, max_samples: int | None, checkpoint_every: int) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    dataset, fingerprint = byte_windows(max_samples)  # any map-style dataset: len() and [index]
    torch.manual_seed(0)  # the same first weights on any number of processes
    model = ByteTransformer()
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    order = rd.Shuffle(len(dataset), seed=1)
    loader = rd.ResumableLoader(dataset, order=order, fingerprint=fingerprint, global_batch=10, microbatch=2,
                                epochs=epochs, mesh=mesh, num_workers=1, ledger=out / "ledger")  # fmt: skip
    num_updates = loader.num_updates or 0  # None for a run without an end
    scheduler = LambdaLR(optimizer, lambda n: min((n + 1) / 10, 0.55 + 0.45 * math.cos(math.pi * n / num_updates)))

    def checkpoint_state() -> dict[str, Any]:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "scheduler": scheduler, "loader": loader}

    # DCP writes .metadata last: a checkpoint that has it is complete. It loads in place, the loader included.
    if complete := sorted(path.parent for path in out.glob("checkpoints/*/.metadata")):
        dcp.load(state := checkpoint_state(), checkpoint_id=complete[-1])
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    print(json.dumps({"rank": dist.get_rank(), "pid": os.getpid(), "start": loader.cursor.updates}), flush=True)

    loss_sum = torch.zeros(())
    for microbatch in loader:
        loss = (model(microbatch.data) * microbatch.weights).sum() * microbatch.loss_scale
        loss.backward()
        loss_sum += loss.detach() / dist.get_world_size()  # summed over ranks: the mean over the global batch
        if microbatch.is_last:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            loader.commit()
            dist.all_reduce(loss_sum)
            if dist.get_rank() == 0:
                print(json.dumps({"update": microbatch.update, "loss": loss_sum.item()}), flush=True)
            loss_sum.zero_()
            if (done := loader.cursor.updates) % checkpoint_every == 0 or done == num_updates:
                loader.check_agreement()  # all ranks hold one cursor, and it tells what they read
                dcp.save(checkpoint_state(), checkpoint_id=out / f"checkpoints/{done:08d}")
    (out / "cursor.json").write_bytes(loader.cursor.to_json())
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory for checkpoints, ledger and cursor")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--max-samples", type=int, help="use only the first samples")
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="UPDATES")
    main(**vars(parser.parse_args()))

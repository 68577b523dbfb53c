"""Train a small byte-level transformer on packed rows of documents, and resume it on any number of processes.

resumable-data tokens build *.txt -o corpus --split-on blank-lines    # any texts; a document is a paragraph
torchrun --standalone --nproc-per-node 4 train_bytes.py --tokens corpus --out run
torchrun --standalone --nproc-per-node 3 train_bytes.py --tokens corpus --out run    # goes on where the 4 stopped
"""

import argparse
import json
import math
import os
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

LENGTH, VOCABULARY = 256, 257  # of a row, in tokens; the bytes and the end token
WIDTH, HEADS, DEPTH = 64, 4, 2  # of the model


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ByteTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))

    def forward(self, tokens: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:  # twice (rows, LENGTH)
        piece = (position_ids == 0).cumsum(1)  # positions begin at 0 again with each document, or part of one
        mask = (piece[:, None, :, None] == piece[:, None, None, :]).tril()  # look back, and never into another
        x = self.tokens(tokens) + self.places(position_ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def main(tokens: str, out: Path, epochs: int, checkpoint_every: int) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)  # the same first weights on any number of processes
    model = ByteTransformer()
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    packed = rd.PackedTokens(rd.open_tokens(tokens), sequence_length=LENGTH, seed=1)
    loader = rd.ResumableLoader(
        packed, global_batch=10, microbatch=2, epochs=epochs, mesh=mesh, num_workers=1, ledger=out / "ledger"
    )
    num_updates = loader.num_updates or 0  # None for a run without an end
    scheduler = LambdaLR(optimizer, lambda n: min((n + 1) / 10, 0.55 + 0.45 * math.cos(math.pi * n / num_updates)))

    def checkpoint_state() -> dict[str, Any]:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "scheduler": scheduler, "loader": loader}

    # DCP writes .metadata last: a checkpoint that has it is complete. It loads in place, the loader included.
    if complete := sorted(path.parent for path in out.glob("checkpoints/*/.metadata")):
        dcp.load(state := checkpoint_state(), checkpoint_id=complete[-1])
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    start = {"rank": dist.get_rank(), "pid": os.getpid(), "start": loader.cursor.updates, "num_updates": num_updates}
    print(json.dumps(start), flush=True)

    loss_sum = torch.zeros(())
    for microbatch in loader:
        rows = microbatch.data
        logits, labels = model(rows["tokens"], rows["position_ids"]), rows["labels"]  # -100 where there is no target
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        loss = losses * microbatch.loss_scale  # 1 over the targets of the whole update, times the number of ranks
        loss.backward()
        loss_sum += loss.detach() / dist.get_world_size()  # summed over ranks: the mean over all targets
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
    parser.add_argument("--tokens", metavar="PREFIX", required=True, help="of the .bin and .idx of `tokens build -o`")
    parser.add_argument("--out", type=Path, required=True, help="directory for checkpoints, ledger and cursor")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="UPDATES")
    options = parser.parse_args()
    if not Path(f"{options.tokens}.idx").exists():
        parser.error(f"no {options.tokens}.idx; to make it: resumable-data tokens build *.txt -o {options.tokens}")
    main(**vars(options))

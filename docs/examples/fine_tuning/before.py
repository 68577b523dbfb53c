"""Fine-tune on rows of different lengths: the loss of a step is the mean over the target tokens of all ranks.

The task is to write a row of letters backwards. Run it with torchrun --standalone --nproc-per-node 3.
"""

import argparse
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

LETTERS, STOP, WIDTH, LENGTH_MAX, NO_TARGET = 26, 26, 32, 24, -100


class Backwards(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Tokens of a prompt and its answer, and labels: the next token where that is of the answer."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(2, LENGTH_MAX // 2, (), generator=generator))
        prompt = torch.randint(0, LETTERS, (length,), generator=generator)
        tokens = torch.cat([prompt, torch.tensor([STOP]), prompt.flip(0)])
        return tokens[:-1], torch.cat([torch.full((length,), NO_TARGET), tokens[length + 1 :]])


def pad(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, labels = [tokens for tokens, _ in rows], [labels for _, labels in rows]
    return pad_sequence(tokens, True, STOP), pad_sequence(labels, True, NO_TARGET)


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(LETTERS + 1, WIDTH), nn.Embedding(LENGTH_MAX, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, LETTERS + 1)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # the sum of the targets' losses
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = self.head(self.layer(x, src_mask=mask, is_causal=True)).transpose(1, 2)
        return nn.functional.cross_entropy(logits, labels, ignore_index=NO_TARGET, reduction="sum")


class Training(Stateful):
    """Model and optimizer, as a checkpoint takes them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.parts = (model, optimizer)

    def state_dict(self) -> dict[str, Any]:
        model_state, optimizer_state = get_state_dict(*self.parts)
        return {"model": model_state, "optimizer": optimizer_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(*self.parts, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main(out: Path, epochs: int, batch_size: int, accumulation: int, samples: int, save_every: int) -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(0)
    data = Backwards(samples)
    sampler = DistributedSampler(data, shuffle=True)
    model = Writer()
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(data, batch_size, sampler=sampler, collate_fn=pad, num_workers=1)

    state: dict[str, Any] = {"training": Training(model, optimizer), "step": 0, "epoch": 0}
    if complete := sorted(path.parent for path in out.glob("*/.metadata")):
        dcp.load(state, checkpoint_id=complete[-1])
    for epoch in range(state["epoch"], epochs):
        sampler.set_epoch(epoch)
        state["epoch"] = epoch
        batches = iter(loader)
        while window := list(islice(batches, accumulation)):
            num_targets = sum((labels != NO_TARGET).sum() for _, labels in window)
            dist.all_reduce(num_targets)
            loss_sum = torch.zeros(())
            for tokens, labels in window:
                loss = model(tokens, labels) / num_targets
                (loss * world).backward()  # FSDP averages gradients over the ranks
                loss_sum += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
            if state["step"] % save_every == 0:
                dist.all_reduce(loss_sum)
                if dist.get_rank() == 0:
                    print(f"step {state['step']}: loss {loss_sum.item():.4f}", flush=True)
                dcp.save(state, checkpoint_id=out / f"{state['step']:08d}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4, help="rows of one rank at once")
    parser.add_argument("--accumulation", type=int, default=2, help="batches of one rank in one step")
    parser.add_argument("--samples", type=int, default=403)
    parser.add_argument("--save-every", type=int, default=5, metavar="STEPS")
    main(**vars(parser.parse_args()))

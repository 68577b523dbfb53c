"""Does a training run become slower with this package in the place of DistributedSampler and DataLoader?

A small transformer under FSDP2 on two gloo processes, the same shapes of batches, accumulation and steps. Both
loops run in the same processes, in turns, a stretch of updates each; the ledger is on. ``ratio`` is the median over the
pairs of stretches of their seconds; its spread is what the machine's other work does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

import resumable_data as rd
from benchmarks._measure import add_output_argument, interleave, report, summarise

WORDS, LENGTH, WIDTH = 256, 64, 64
SAMPLES, MICROBATCH, ACCUMULATION_STEPS = 100_000, 8, 2
NUM_PROCESSES = 2


class Sentences(torch.utils.data.Dataset[torch.Tensor]):
    """Rows of random words, made when they are read."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(index))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        logits: torch.Tensor = self.head(self.blocks(self.embed(words), mask=mask, is_causal=True))
        return logits


class Trainer:
    """A sharded model and its optimizer."""

    def __init__(self) -> None:
        self.model = Model()
        for block in self.model.blocks.layers:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def losses(self, words: torch.Tensor) -> torch.Tensor:
        logits = self.model(words[:, :-1]).transpose(1, 2)
        return nn.functional.cross_entropy(logits, words[:, 1:], reduction="none").mean(1)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def torch_updates(trainer: Trainer, num_workers: int) -> Iterator[None]:
    """The usual loop."""
    sampler: Any = DistributedSampler(Sentences(), seed=0)
    loader: Any = DataLoader(Sentences(), MICROBATCH, sampler=sampler, num_workers=num_workers)
    for number, words in enumerate(loader, 1):
        (trainer.losses(words).mean() / ACCUMULATION_STEPS).backward()
        if number % ACCUMULATION_STEPS == 0:
            trainer.step()
            yield


def our_updates(trainer: Trainer, num_workers: int, ledger: str) -> Iterator[None]:
    """The same with this package."""
    loader = rd.ResumableLoader(
        Sentences(),
        order=rd.Shuffle(SAMPLES, seed=0),
        global_batch=MICROBATCH * ACCUMULATION_STEPS * NUM_PROCESSES,
        microbatch=MICROBATCH,
        num_workers=num_workers,
        ledger=ledger,
    )
    with loader:
        for microbatch in loader:
            losses = trainer.losses(microbatch.data)
            ((losses * microbatch.weights).sum() * microbatch.loss_scale).backward()
            if microbatch.is_last:
                trainer.step()
                loader.commit()
                yield


def stretch(updates: Iterator[None], num_updates: int) -> Callable[[], float]:
    """Seconds of so many updates, all ranks together."""

    def run() -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(num_updates):
            next(updates)
        dist.barrier()
        return time.perf_counter() - start

    return run


def train(folder: Path, repeats: int, num_updates: int, num_workers: int) -> dict[str, Any]:
    """One rank: both loops in turns."""
    trainers = Trainer(), Trainer()
    cases = {
        "DistributedSampler and DataLoader": stretch(torch_updates(trainers[0], num_workers), num_updates),
        "ours": stretch(our_updates(trainers[1], num_workers, str(folder / f"ledger-{num_workers}")), num_updates),
    }
    seconds = interleave(cases, repeats)
    units = dict.fromkeys(cases, num_updates)
    found = summarise(seconds, reference="DistributedSampler and DataLoader", units=units)
    ours, theirs = seconds["ours"], seconds["DistributedSampler and DataLoader"]
    pairs = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {**found, "pairs": {"quarter": pairs[len(pairs) // 4], "three_quarters": pairs[-1 - len(pairs) // 4]}}


def run_rank(folder: Path, repeats: int, num_updates: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {f"{workers} workers": train(folder, repeats, num_updates, workers) for workers in (0, 1)}
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--updates", type=int, default=20, help="of one stretch")
    parser.add_argument("--short", action="store_true", help="5 repeats of 8 updates")
    parser.add_argument("--rank-in", type=Path, help=argparse.SUPPRESS)
    add_output_argument(parser)
    arguments = parser.parse_args()
    repeats, num_updates = (5, 8) if arguments.short else (arguments.repeats, arguments.updates)
    if arguments.rank_in:
        run_rank(arguments.rank_in, repeats, num_updates)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_PROCESSES}"]
        command += ["-m", "benchmarks.end_to_end", "--rank-in", folder]
        command += ["--repeats", str(repeats), "--updates", str(num_updates)]
        subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})
        results = json.loads((Path(folder) / "results.json").read_text())
    report("end_to_end", results, arguments)


if __name__ == "__main__":
    main()

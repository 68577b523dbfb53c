"""Saves, saves beside training and loads on several processes, many times over, each ended as a user's program ends.

Run as a script, it writes the exit codes of all processes. They are forked from this one, which has torch imported, and
leave Python by themselves, with its clean-up and gloo's.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from resumable_data.checkpoint import async_save_checkpoint, load_checkpoint, save_checkpoint
from tests.children import wait_for
from tests.distributed.saves import Program

MAX_S = 120.0


def save_and_load(root: Path) -> None:
    """To disk and back, and to disk beside training, which is the last that the processes do."""
    program = Program(1)
    save_checkpoint(root / "1", program.state, loader=program.loader)
    again = Program()
    load_checkpoint(root / "1", again.state, loader=again.loader)
    again.train(1)
    save = async_save_checkpoint(root / "2", again.state, loader=again.loader, keep=2)
    again.train(1)
    save.result()


def run(rank: int, num_ranks: int, root: Path, end: str) -> None:
    """What one process does, from its first line to its last.

    Args:
        rank: Of the process.
        num_ranks: How many there are.
        root: A directory for all of them.
        end: What comes before it leaves: ``"barrier"``, one and then the end of the process group; ``"destroy"``, that
            end alone; ``"nothing"``.
    """
    dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=num_ranks)
    save_and_load(root)
    if end == "barrier":
        dist.barrier()
    if end != "nothing":
        dist.destroy_process_group()


def main() -> None:
    folder, num_ranks, num_runs, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    warm = Program(1)
    save_checkpoint(folder / "warm", warm.state, loader=warm.loader)  # imports what the processes would
    gc.collect()
    gc.freeze()  # what a process would copy page by page when it ends
    codes = []
    for number in range(num_runs):
        root = folder / str(number)
        root.mkdir()
        pids = []
        for rank in range(num_ranks):
            pid = os.fork()
            if not pid:
                run(rank, num_ranks, root, end)
                return
            pids.append(pid)
        codes.append(wait_for(pids, timeout_s=MAX_S))
    sys.stdout.write(json.dumps(codes))


if __name__ == "__main__":
    main()

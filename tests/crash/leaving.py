"""Leaves Python in several ways while a save runs beside training; run as a script, it writes how each process ended.

All processes are forked from this one, which has torch imported, and end as any script does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from resumable_data.checkpoint import async_save_checkpoint, save_checkpoint
from tests.children import wait_for
from tests.distributed.saves import before_writing

MAX_S = 60.0
HELD_S = 1.0
CASES = {1: ["end", "exit", "interrupt", "default"], 2: ["end", "destroy", "exit", "default", "one killed"]}
"""Ways to leave, by the number of processes."""


def leave(how: str) -> None:
    """While a save is held."""
    if how == "destroy":
        dist.destroy_process_group()
    elif how == "one killed":
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    elif how != "end":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(MAX_S)


def run(how: str, rank: int, num_ranks: int, root: Path) -> None:
    """What one process does: a save that is whole, and one that it leaves."""

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(3) if how == "exit" else KeyboardInterrupt

    if how in ("exit", "interrupt"):
        signal.signal(signal.SIGTERM, stop)
    if num_ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=num_ranks)
    state = {"model": torch.ones(3)}
    save_checkpoint(root / "1", state)
    holding = before_writing(lambda: time.sleep(HELD_S))
    holding.__enter__()  # for as long as there is a thread that writes
    async_save_checkpoint(root / "2", state)
    leave(how)


def main() -> None:
    folder, num_ranks = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    started: dict[str, list[int]] = {}
    for how in CASES[num_ranks]:
        root = folder / how
        root.mkdir()
        for rank in range(num_ranks):
            pid = os.fork()
            if not pid:
                run(how, rank, num_ranks, root)
                return
            started.setdefault(root.name, []).append(pid)
    sys.stdout.write(json.dumps({name: wait_for(pids, timeout_s=MAX_S) for name, pids in started.items()}))


if __name__ == "__main__":
    main()

"""An exercise on one machine: a small checkpoint made on some processes, and rehearsed on others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def run_exercise(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Launch one torchrun after the other; returns the exit code of the first that does not end well."""
    own = _without(argv, "--from-replicas", "--to-replicas")
    code = _torchrun(args.from_replicas, own)
    if code:
        return code
    at = own.index("--save") if "--save" in own else -1
    moved = [*own[:at], "--checkpoint", *own[at + 1 :]] if at >= 0 else _renamed(own)
    return _torchrun(args.to_replicas, moved)


def _torchrun(num_replicas: int, argv: Sequence[str]) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_replicas}"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run([*command, "-m", "resumable_data.rehearse", *argv], check=False, env=environment)
    return done.returncode


def _without(argv: Sequence[str], *names: str) -> list[str]:
    """Arguments but for some options and their values."""
    kept, is_value = [], False
    for one in argv:
        if is_value:
            is_value = False
        elif one in names:
            is_value = True
        elif not one.startswith(tuple(f"{name}=" for name in names)):
            kept.append(one)
    return kept


def _renamed(argv: Sequence[str]) -> list[str]:
    return [one.replace("--save=", "--checkpoint=", 1) if one.startswith("--save=") else one for one in argv]

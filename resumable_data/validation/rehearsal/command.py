"""What ``python -m resumable_data.rehearse`` does on each process, once torch is there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from resumable_data.checkpoint.collective import rank_and_size, together
from resumable_data.errors import ResumableDataError, UsageError
from resumable_data.validation.rehearsal.arguments import options_of
from resumable_data.validation.rehearsal.job import Context, Job
from resumable_data.validation.rehearsal.run import run_rehearsal
from resumable_data.validation.rehearsal.synthetic import make_exercise

if TYPE_CHECKING:
    import argparse

    from resumable_data.validation.checks import Check
    from resumable_data.validation.verdict import Verdict


def run_command(args: argparse.Namespace, files: list[Check] | ResumableDataError | None) -> int:
    """Rehearse, print the verdict on the first process, and return the exit code, the same on all of them.

    Args:
        args: The arguments.
        files: On the first process, what the first stage gave.
    """
    is_ours = _start(args.timeout)
    together(lambda: _raise(files))

    def build(context: Context) -> Job:
        return find_build(args.build)(context)

    def leave(verdict: Verdict) -> None:
        _print(verdict, as_json=args.json)
        os._exit(verdict.exit_code)

    if args.save is not None:
        verdict = make_exercise(
            build, args.save, leave, updates=args.updates, arguments=args.arguments, scratch=args.scratch
        )
    else:
        checks = None if isinstance(files, ResumableDataError) else files
        verdict = run_rehearsal(build, options_of(args), leave, checks)
    _print(verdict, as_json=args.json)
    if is_ours:
        dist.barrier()  # without it gloo's threads abort at times when a peer goes first
        dist.destroy_process_group()
    return verdict.exit_code


def _raise(files: list[Check] | ResumableDataError | None) -> None:
    if isinstance(files, ResumableDataError):
        raise files


def _start(timeout_s: float) -> bool:
    """Make the process group that torchrun asks for; whether there was none."""
    if "RANK" not in os.environ or dist.is_initialized():
        return False
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    return True


def find_build(name: str) -> Callable[[Context], Job]:
    """The function that ``MODULE:BUILD`` or ``FILE.py:BUILD`` names.

    Raises:
        UsageError: There is none.
    """
    place, _, function = name.rpartition(":")
    if not place:
        raise UsageError(f"expected MODULE:BUILD or FILE.py:BUILD, got {name!r}. Nothing was rehearsed.")
    module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    found = getattr(module, function, None)
    if not callable(found):
        raise UsageError(f"{place} has no function {function!r}. Nothing was rehearsed.")
    build: Callable[[Context], Job] = found
    return build


def _from_file(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"there is no file {path}. Nothing was rehearsed.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # workers of a DataLoader find the dataset's class there
    spec.loader.exec_module(module)
    return module


def _print(verdict: Verdict, *, as_json: bool) -> None:
    if rank_and_size()[0] == 0:
        sys.stdout.write((verdict.to_json().decode() if as_json else verdict.to_text()) + "\n")
        sys.stdout.flush()

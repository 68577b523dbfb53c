"""What does save_checkpoint cost beside plain dcp.save, and load_checkpoint beside dcp.load?

One process, a model and AdamW's moments in float32, in a folder of the temporary directory; a new folder each time,
deleted untimed. Targets: at most 20 % more than ``dcp.save`` with the checksums of the files, at most 60 % with digests
of the tensors in memory.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.checkpoint import load_checkpoint, save_checkpoint
from resumable_data.checkpoint.collective import alone_is_meant

WIDTH = 1024


def make_program(mebibytes: int) -> dict[str, Any]:
    """Layers of 4 MiB each, three times that with the moments."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(max(1, mebibytes // 12))))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def plain_state(program: dict[str, Any]) -> dict[str, Any]:
    model, optimizer = program["model"], program["optimizer"]
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def timed(folder: Path, write: Callable[[Path], object]) -> float:
    """Seconds of a save into a new folder."""
    path = folder / "checkpoint"
    started = time.perf_counter()
    write(path)
    seconds = time.perf_counter() - started
    shutil.rmtree(path)
    return seconds


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    add_output_argument(parser)
    arguments = parser.parse_args()
    program = make_program(arguments.mebibytes)
    with tempfile.TemporaryDirectory() as name, alone_is_meant():
        folder = Path(name)
        saves: dict[str, Callable[[Path], object]] = {
            "dcp.save": lambda path: dcp.save(plain_state(program), checkpoint_id=path, no_dist=True),
            "save_checkpoint": lambda path: save_checkpoint(path, program),
            "save_checkpoint, digests": lambda path: save_checkpoint(path, program, checksums="digest"),
        }
        times = interleave({case: partial(timed, folder, save) for case, save in saves.items()}, arguments.repeats)
        save_checkpoint(folder / "saved", program, checksums="digest")
        save_checkpoint(folder / "saved-crc", program)
        loads = interleave(
            {
                "dcp.load": lambda: dcp.load(plain_state(program), checkpoint_id=folder / "saved", no_dist=True),
                "load_checkpoint": lambda: load_checkpoint(folder / "saved-crc", program),
                "load_checkpoint, digests": lambda: load_checkpoint(folder / "saved", program),
                "load_checkpoint, directory": lambda: load_checkpoint(folder / "saved-crc", program, level="directory"),
            },
            arguments.repeats,
        )
    results = {
        "mebibytes": arguments.mebibytes,
        "save": summarise(times, reference="dcp.save"),
        "load": summarise(loads, reference="dcp.load"),
    }
    report("checkpoint_save", results, arguments)


if __name__ == "__main__":
    main()

"""How much longer does async_save_checkpoint keep the training loop than plain dcp.async_save?

Seconds until the call returns, the save before it being over: a new folder each time, waited for and deleted untimed.
One process; a model and AdamW's moments in float32. Target: at most 5 % longer with
checksums of the files.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

from benchmarks._measure import add_output_argument, interleave, report, summarise
from benchmarks.checkpoint_save import make_program, plain_state
from resumable_data.checkpoint import async_save_checkpoint
from resumable_data.checkpoint.collective import ALONE_WARNING


def timed(folder: Path, start: Callable[[Path], Callable[[], object]]) -> float:
    """Seconds until a save is started, which is then finished and deleted."""
    path = folder / "checkpoint"
    started = time.perf_counter()
    finish = start(path)
    seconds = time.perf_counter() - started
    finish()
    shutil.rmtree(path)
    return seconds


def start_plain(program: dict[str, Any], path: Path) -> Callable[[], object]:
    """What a script without this package does; how to wait for it."""
    save = dcp.async_save(plain_state(program), checkpoint_id=path, no_dist=True)
    assert isinstance(save, Future)  # it is one with the stager that is the default
    return save.result


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=21)
    add_output_argument(parser)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", ALONE_WARNING)
    program = make_program(arguments.mebibytes)
    saves: dict[str, Callable[[Path], Callable[[], object]]] = {
        "dcp.async_save": partial(start_plain, program),
        "async_save_checkpoint": lambda path: async_save_checkpoint(path, program).result,
        "async_save_checkpoint, digests": lambda path: async_save_checkpoint(path, program, checksums="digest").result,
    }
    with tempfile.TemporaryDirectory() as name:
        times = interleave({case: partial(timed, Path(name), save) for case, save in saves.items()}, arguments.repeats)
    results = {"mebibytes": arguments.mebibytes, "blocked": summarise(times, reference="dcp.async_save")}
    report("checkpoint_async", results, arguments)


if __name__ == "__main__":
    main()

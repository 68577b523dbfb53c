"""From a saved state to the first batch of data on another number of ranks: every loader, whole.

Two ranks, real processes in a gloo process group, read 1 % of an epoch and save. Then one process goes on, a fresh one
for each measurement, alone in a gloo group that it joins before the clock runs, after the same move on a dataset of
1,280 samples, which imports what is needed. Timed is what a restarted job waits for: dataset, sampler and loader are
made, the state is loaded, and the first step is read. Samples are numbers, so that a loader that skips by reading is at
its best. A loader that needs files finds those of the first launch, also an index that it wrote there itself.

``processor_s`` is of all threads of the process; no loader is given worker processes. ``times_ours`` is of it, which
other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._measure import add_only_argument, add_output_argument, report
from benchmarks._store import NOT_INSTALLED
from benchmarks.competitors._interface import Competitor, Job, RefusedError
from benchmarks.competitors.launch import Launch, LaunchFailedError, free_port, join_group, launch
from benchmarks.competitors.registry import COMPETITORS, by_name, installed_version

BEFORE, AFTER, BATCH_SIZE, PERCENT = 2, 1, 64, 1
GLOBAL_BATCH = BEFORE * BATCH_SIZE
WARM_UP = 10 * GLOBAL_BATCH
FULL, SHORT = (10**6, 10**7), (10**6,)
LARGEST_FILES = 10**6
"""Samples up to which files are written for loaders that need them."""
LAUNCH_TIMEOUT_S, TIMEOUT_S = 600, 900
REFERENCE = "resumable_data"


def first_job(length: int, folder: Path) -> Job:
    """What reads and saves."""
    return Job(
        length=length,
        rank=0,
        num_replicas=BEFORE,
        batch_size=BATCH_SIZE,
        global_batch=GLOBAL_BATCH,
        num_workers=0,
        seed=7,
        epoch=0,
        steps_done=0,
        states=(),
        folder=folder,
    )


def next_job(before: Job, states: Sequence[Any]) -> Job:
    """What goes on from there, with the same global batch."""
    return replace(
        before, num_replicas=AFTER, batch_size=GLOBAL_BATCH // AFTER, steps_done=num_steps(before.length), states=states
    )


def num_steps(length: int) -> int:
    """Of the first launch; one at least."""
    return max(1, length * PERCENT // 100 // GLOBAL_BATCH)


def save(competitor: Competitor, length: int, folder: Path) -> Job:
    """Write the files and run the first launch; what goes on.

    Raises:
        RefusedError: The loader refuses.
        LaunchFailedError: It fails, or hangs.
    """
    folder.mkdir()
    competitor.prepare(folder, length)
    before = first_job(length, folder)
    one = Launch(job=before, stop_after=num_steps(length), log=folder / "before", timeout_s=LAUNCH_TIMEOUT_S)
    return next_job(before, launch(competitor, one))


def first_ids(competitor: Competitor, job: Job) -> Sequence[int]:
    """The samples of the first step: this is what is timed."""
    return next(competitor.open(job).steps())


def measure(competitor: Competitor, warm_up: Job, job: Job) -> dict[str, Any]:
    """One case in this process, which is the only rank."""
    join_group(0, AFTER, free_port())
    try:
        first_ids(competitor, warm_up)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        processor, start = time.process_time(), time.perf_counter()
        ids = first_ids(competitor, job)
    except RefusedError as error:
        return {"outcome": "refused", "why": str(error)[:500]}
    except Exception as error:  # whatever another package raises is its answer
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:500]}
    seconds, processor_s = time.perf_counter() - start, time.process_time() - processor
    assert len(ids) == job.batch_size
    return {
        "outcome": "read",
        "s": seconds,
        "processor_s": processor_s,
        "more_memory_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024,
    }


def _save_both(competitor: Competitor, length: int, folder: Path) -> dict[str, Any]:
    """The first launches of the warm-up and of the case, their jobs put down for the processes that go on."""
    try:
        jobs = [save(competitor, WARM_UP, folder / "warm-up"), save(competitor, length, folder / "case")]
    except RefusedError as error:
        return {"outcome": "refused", "why": str(error)[:500]}
    except LaunchFailedError as error:
        return {"outcome": "failed", "why": str(error)[-500:]}
    (folder / "jobs").write_bytes(pickle.dumps(jobs))
    return {"outcome": "saved"}


def _apart(what: str, competitor: Competitor, length: int, folder: Path) -> dict[str, Any]:
    """``--save`` or ``--one`` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.first_batch", what, competitor.name, str(length), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"outcome": "failed", "why": f"no answer in {TIMEOUT_S} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"outcome": "failed", "why": done.stderr[-500:]}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _first(length: int, folders: Mapping[str, Path], competitor: Competitor) -> dict[str, Any]:
    """The first launches of one loader, or that it is not there."""
    if installed_version(competitor) is None:
        return {"outcome": NOT_INSTALLED}
    folders[competitor.name].mkdir()
    return _apart("--save", competitor, length, folders[competitor.name])


def compare(length: int, repeats: int, competitors: Sequence[Competitor]) -> dict[str, Any]:
    """The first launch of each once, then what goes on in turns; see `summary`."""
    runs: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as parent:
        folders = {one.name: Path(parent) / str(number) for number, one in enumerate(competitors)}
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # the first launches are not timed
            for one, saved in zip(competitors, pool.map(partial(_first, length, folders), competitors), strict=True):
                runs[one.name] = [] if saved["outcome"] == "saved" else [saved]
        for _ in range(repeats):
            for one in competitors:
                known = runs[one.name]
                if all(run["outcome"] == "read" for run in known):
                    known.append(_apart("--one", one, length, folders[one.name]))
    return summary(runs)


def summary(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The median of each loader, and how many times ours of the same turn it is; or why there is none."""
    found: dict[str, Any] = {}
    for name, known in runs.items():
        if known[-1]["outcome"] != "read":
            found[name] = known[-1]
            continue
        keys = ("s", "processor_s", "more_memory_mib")
        pairs = zip(known, runs[REFERENCE], strict=True)
        found[name] = {"outcome": "read", **{key: median(run[key] for run in known) for key in keys}}
        found[name]["times_ours"] = median(run["processor_s"] / mine["processor_s"] for run, mine in pairs)
    return found


def chosen(only: str, length: int) -> list[Competitor]:
    """Ours, and all whose name contains ``only``, without those that would need too many files."""
    named = [one for one in COMPETITORS if one.name == REFERENCE or only in one.name]
    return [one for one in named if length <= LARGEST_FILES or not one.has_files]


def _answer(name: str, length: str, folder: str, *, is_first: bool) -> None:
    """What a process of `_apart` does; its last line is the answer."""
    competitor, place = by_name(name), Path(folder)
    if is_first:
        answer = _save_both(competitor, int(length), place)
    else:
        answer = measure(competitor, *pickle.loads((place / "jobs").read_bytes()))  # written by `_save_both`
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)  # threads of a loader that has not read its epoch to the end would go on


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="without the largest")
    add_only_argument(parser)
    for what in ("--save", "--one"):
        parser.add_argument(what, nargs=3, metavar=("LOADER", "SAMPLES", "FOLDER"), help=argparse.SUPPRESS)
    add_output_argument(parser)
    arguments = parser.parse_args()
    if arguments.save or arguments.one:
        _answer(*(arguments.save or arguments.one), is_first=bool(arguments.save))
    results: dict[str, Any] = {}
    for length in SHORT if arguments.short else FULL:
        competitors = chosen(arguments.only, length)
        if any(arguments.only in one.name for one in competitors):
            found = compare(length, arguments.repeats, competitors)
            results[f"{length} samples"] = {name: one for name, one in found.items() if arguments.only in name}
    report("first_batch", results, arguments)


if __name__ == "__main__":
    main()

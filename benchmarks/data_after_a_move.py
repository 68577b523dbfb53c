"""What do loaders do to the data of a run that stops and goes on somewhere else?

Each loader is used as its own documentation says, on ranks that are real processes with a gloo process group. A run
reads some steps of an epoch, saves, and goes on in another launch to the end of the epoch; all IDs that the two
launches read are counted with `audit_ids`. Replayed are samples read once more than they should be, omitted those
never read. Where a global batch is not divisible by the new ranks, loaders that are told the batch of a rank keep
that; those that are told the global batch keep that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measure import add_output_argument, report
from benchmarks._store import NOT_INSTALLED
from benchmarks.competitors._interface import Competitor, Job, RefusedError
from benchmarks.competitors.launch import Launch, LaunchFailedError, launch, logs_of
from benchmarks.competitors.registry import COMPETITORS, by_name, installed_version
from resumable_data.logs import Fields, audit_ids


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run that stops once.

    Attributes:
        name: What tables call it.
        length: Samples.
        before: Ranks of the first launch.
        after: Ranks of the second one.
        global_batch: Samples of a step.
        stop_after: Steps of the first launch; None for all of an epoch, and the end of the loop over it.
        workers: Worker processes of a rank, before and after.
        seed_after: The seed that the second launch is given; the first has 0.
    """

    name: str
    length: int
    before: int
    after: int
    global_batch: int
    stop_after: int | None
    workers: tuple[int, int] = (0, 0)
    seed_after: int = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the first launch reads a whole epoch, and the second one the next."""
        return self.stop_after is None or self.stop_after * self.global_batch == self.length

    def batch_size(self, num_replicas: int) -> int:
        """What a rank reads in one step: its share of the global batch, else what it read before."""
        return (self.global_batch if self.global_batch % num_replicas == 0 else self._kept) // num_replicas

    @property
    def _kept(self) -> int:
        return self.global_batch // self.before * self.after


SCENARIOS = (
    Scenario(name="4 to 2 ranks", length=64, before=4, after=2, global_batch=16, stop_after=2),
    Scenario(name="2 to 4 ranks", length=64, before=2, after=4, global_batch=16, stop_after=2),
    Scenario(name="4 to 3 ranks", length=64, before=4, after=3, global_batch=16, stop_after=2),
    Scenario(name="16 to 10 ranks", length=960, before=16, after=10, global_batch=48, stop_after=10),
    Scenario(name="saved after an epoch", length=64, before=2, after=2, global_batch=16, stop_after=None),
    Scenario(name="saved after its last step", length=64, before=2, after=2, global_batch=16, stop_after=4),
    Scenario(name="1 to 3 workers", length=240, before=2, after=2, global_batch=16, stop_after=5, workers=(1, 3)),
    Scenario(name="another seed", length=64, before=2, after=2, global_batch=16, stop_after=2, seed_after=1),
)
MOST_RANKS_IN_SHORT = 4


def run_scenario(competitor: Competitor, scenario: Scenario, folder: Path) -> dict[str, Any]:
    """What happened: refused, failed, or the counts of samples replayed and omitted."""
    competitor.prepare(folder, scenario.length)
    first = Job(
        length=scenario.length,
        rank=0,
        global_batch=scenario.global_batch,
        folder=folder,
        num_replicas=scenario.before,
        batch_size=scenario.batch_size(scenario.before),
        num_workers=scenario.workers[0],
        seed=0,
        epoch=0,
        steps_done=0,
        states=(),
    )
    before = Launch(job=first, stop_after=scenario.stop_after, log=folder / "before")
    try:
        states = launch(competitor, before)
    except RefusedError as error:
        return {"outcome": "refused at the start", "why": str(error)}
    at_end = scenario.is_at_end
    second = replace(
        first,
        num_replicas=scenario.after,
        batch_size=scenario.batch_size(scenario.after),
        num_workers=scenario.workers[1],
        seed=scenario.seed_after,
        epoch=1 if at_end else 0,
        steps_done=0 if at_end else scenario.stop_after or 0,
        states=states,
    )
    after = Launch(job=second, stop_after=None, asks_again=at_end, log=folder / "after")
    try:
        launch(competitor, after)
    except RefusedError as error:
        return {"outcome": "refused", "why": str(error)}
    counts = _count(logs_of([after] if at_end else [before, after]), scenario.length)
    return {"outcome": "read", **counts, "empty_passes": int(any(after.log.glob("*.empty")))}


def _count(logs: list[Path], length: int) -> dict[str, int]:
    """Samples read once too often, and never, by our own audit of logs; checked against a plain count."""
    seen = np.zeros(length, dtype=np.int64)
    logs = [log for log in logs if log.stat().st_size]
    for log in logs:
        for line in log.read_text().splitlines():
            np.add.at(seen, [int(number) for number in line.split()[3:]], 1)
    counts = {"replayed": int((seen - 1).clip(0).sum()), "omitted": int((seen == 0).sum())}
    if not logs:  # there is nothing to audit then
        return counts
    audited = audit_ids(logs, num_samples=length, format="text", fields=Fields(columns=("_", "_", "_", "ids")))
    found = {"replayed": audited.replayed, "omitted": audited.omitted}
    if counts != found:
        raise SystemExit(f"the audit found {found}, and a plain count {counts}")
    return counts


def _run_all(competitor: Competitor, *, is_short: bool) -> dict[str, Any]:
    """All scenarios of one loader in this process, which forks the ranks."""
    answers: dict[str, Any] = {}
    for scenario in SCENARIOS:
        if is_short and scenario.before > MOST_RANKS_IN_SHORT:
            continue
        folder = Path(tempfile.mkdtemp())
        try:
            answers[scenario.name] = run_scenario(competitor, scenario, folder)
        except LaunchFailedError as error:
            answers[scenario.name] = {"outcome": "failed", "why": str(error)[-500:]}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return answers


def _run_apart(competitor: Competitor, *, is_short: bool) -> dict[str, Any]:
    """`_run_all` in a process of its own, or that the loader is not there."""
    release = installed_version(competitor)
    if release is None:
        return {"outcome": NOT_INSTALLED}
    command = [sys.executable, "-m", "benchmarks.data_after_a_move", "--one", competitor.name]
    command += ["--short"] if is_short else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"outcome": "failed", "version": release, "why": done.stderr[-500:]}
    return {"package": competitor.package, "version": release, **json.loads(lines[-1])}


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="loaders whose name contains it")
    parser.add_argument("--short", action="store_true", help="without the move of 16 ranks")
    parser.add_argument("--one", metavar="LOADER", help=argparse.SUPPRESS)
    add_output_argument(parser)
    arguments = parser.parse_args()
    if arguments.one:
        print("\n" + json.dumps(_run_all(by_name(arguments.one), is_short=arguments.short)))
        return
    chosen = [competitor for competitor in COMPETITORS if arguments.only in competitor.name]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # what is counted does not depend on what runs beside it
        found = list(pool.map(partial(_run_apart, is_short=arguments.short), chosen))
    results = {one.name: {"how": one.how, **answers} for one, answers in zip(chosen, found, strict=True)}
    report("data_after_a_move", results, arguments)


if __name__ == "__main__":
    main()

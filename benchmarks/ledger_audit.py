"""How fast is a ledger audited, how large is it, what does writing cost, and how much memory does the audit take?

Ledgers are written by the real writer for ranks that are simulated one after another: digests or full IDs, 512, 64 or
8 samples a microbatch, and 64 microbatches of 8 folded into a record. Speeds are CPU time of one thread, beside those
of the order alone (the IDs of the same positions, which every audit has to compute) and of the obvious audit, which
concatenates all IDs, sorts them and looks for repeats.

"memory" audits 10^9 samples of one rank, and 10^4 rank files, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.audit import audit_ledger
from resumable_data.cursor import Cursor, Recipe
from resumable_data.ledger import Ledger, digest_ids
from resumable_data.order import Int64Array, Shuffle, ids_at

LENGTH = 10**9
CHUNK_ROWS = 1 << 16
FOLD_ROWS = 512


@dataclass(frozen=True)
class Case:
    """A ledger: its layout and what the records hold."""

    microbatch: int
    num_samples: int
    num_replicas: int = 2
    accumulation_steps: int = 1
    ids: str = "digest"
    fold_rows: int = 0

    @property
    def global_batch(self) -> int:
        """Samples of one update."""
        return self.microbatch * self.num_replicas * self.accumulation_steps

    @property
    def num_updates(self) -> int:
        """Updates of the run."""
        return self.num_samples // self.global_batch

    @property
    def num_ids(self) -> int:
        """Samples recorded."""
        return self.num_updates * self.global_batch


def positions_of(case: Case, rank: int, first_update: int, num_updates: int) -> Int64Array:
    """The positions that a rank reads in some updates: (rows,) int64."""
    rows = np.arange(case.microbatch * case.accumulation_steps, dtype=np.int64) * case.num_replicas + rank
    updates = np.arange(first_update, first_update + num_updates, dtype=np.int64)[:, None]
    return (updates * case.global_batch + rows).ravel()


def write_ledger(case: Case, path: Path) -> float:
    """Write the ledger of a run; seconds spent in the writer for each microbatch, commits included."""
    order = Shuffle(LENGTH, seed=1)
    start = Cursor(recipe=Recipe(order=order.describe(), global_batch=case.global_batch))
    ledger = Ledger(path, ids=case.ids, fold_rows=case.fold_rows, on_error="raise")
    claim = ledger.claim(
        start, num_replicas=case.num_replicas, microbatch=case.microbatch, epochs=None, run_id="00000000000000aa"
    )
    seconds = 0.0
    at_once = max(1, CHUNK_ROWS // (case.microbatch * case.accumulation_steps))
    for rank in range(case.num_replicas):
        writer = ledger.open_rank(claim, rank=rank)
        for first in range(0, case.num_updates, at_once):
            updates = range(first, min(first + at_once, case.num_updates))
            positions = positions_of(case, rank, first, len(updates))
            ids = ids_at(order, positions)
            digests = [digest_ids(part) for part in ids.reshape(-1, case.microbatch)]
            started = time.perf_counter()
            record(writer, case, updates, positions, ids, digests)
            seconds += time.perf_counter() - started
        writer.close()
    return seconds / (case.num_updates * case.num_replicas * case.accumulation_steps)


def record(writer: Any, case: Case, updates: range, positions: Int64Array, ids: Int64Array, digests: list[int]) -> None:
    """Record some updates of one rank."""
    size, steps, number = case.microbatch, case.accumulation_steps, 0
    starts = positions[::size].tolist()
    for update in updates:
        for index in range(steps):
            part = ids[number * size : (number + 1) * size] if writer.needs_ids else None
            writer.delivered(
                update,
                index,
                starts[number],
                case.num_replicas,
                size,
                0,
                0,
                digests[number],
                part,
                is_last=index == steps - 1,
            )
            number += 1
        writer.commit(update, True)


def audit(path: Path, num_ids: int) -> None:
    """Audit a ledger, and make sure that it was one."""
    found = audit_ledger(path)
    if (found.verdict, found.samples) != ("proven", num_ids):
        raise SystemExit(found.to_text())


def order_alone(case: Case) -> None:
    """The IDs of all positions of the run, in the chunks that the audit has."""
    order = Shuffle(LENGTH, seed=1)
    for start in range(0, case.num_ids, CHUNK_ROWS // 2):
        order.ids(0, np.arange(start, min(start + CHUNK_ROWS // 2, case.num_ids), dtype=np.int64))


def obvious_audit(case: Case) -> None:
    """Concatenate all ranks' IDs, sort them, and compare them with the sorted IDs that should be there."""
    order = Shuffle(LENGTH, seed=1)
    ranks = [ids_at(order, positions_of(case, rank, 0, case.num_updates)) for rank in range(case.num_replicas)]
    delivered = np.sort(np.concatenate(ranks))
    expected = np.sort(order.ids(0, np.arange(case.num_ids, dtype=np.int64)))
    if (delivered[1:] == delivered[:-1]).any() or not np.array_equal(delivered, expected):
        raise SystemExit("the obvious audit found a difference")


def measure_speed(num_samples: int, repeats: int) -> dict[str, Any]:
    """Ledgers of several kinds, audited in turns."""
    cases = {
        "digest 512": Case(512, num_samples),
        "digest 64": Case(64, num_samples),
        "digest 8": Case(8, num_samples // 8),
        "digest 64, folded": Case(64, num_samples, accumulation_steps=8, fold_rows=FOLD_ROWS),
        "digest 8, folded": Case(8, num_samples, accumulation_steps=64, fold_rows=FOLD_ROWS),
        "full 512": Case(512, num_samples, ids="full"),
    }
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        runs, units = {}, {}
        for name, case in cases.items():
            path = Path(folder) / name.replace(" ", "-")
            seconds = write_ledger(case, path)
            num_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            results[name] = {"writer_us_per_microbatch": seconds * 1e6, "bytes_per_id": num_bytes / case.num_ids}
            runs[name], units[name] = partial(audit, path, case.num_ids), case.num_ids
        small = Case(512, num_samples)
        runs["order alone"], units["order alone"] = partial(order_alone, small), small.num_ids
        runs["obvious audit"], units["obvious audit"] = partial(obvious_audit, small), small.num_ids
        seconds_of = interleave(runs, repeats, time.process_time)
    for name, figures in summarise(seconds_of, reference="order alone", units=units).items():
        results.setdefault(name, {}).update(figures)
        results[name]["best_ids_per_s"] = units[name] / figures["best_s"]
    return results


MEMORY = {
    "10^9 samples, 1 rank": Case(512, 10**9, num_replicas=1),
    "10^4 rank files": Case(64, 10**4 * 64 * 16, num_replicas=10**4),
}


def measure_memory(name: str) -> None:
    """Audit one of `MEMORY` and print the process's peak."""
    case = MEMORY[name]
    with tempfile.TemporaryDirectory() as folder:
        program = (
            "import json, resource, sys, time; from resumable_data.audit import audit_ledger;"
            "started = time.process_time(); report = audit_ledger(sys.argv[1]);"
            "print(json.dumps({'verdict': report.verdict, 'samples': report.samples,"
            " 'cpu_s': time.process_time() - started,"
            " 'peak_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))"
        )
        write_ledger(case, Path(folder) / "ledger")
        done = subprocess.run(
            [sys.executable, "-c", program, str(Path(folder) / "ledger")], capture_output=True, text=True, check=True
        )
    print(json.dumps({name: json.loads(done.stdout)}))


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="audit 10^9 samples and 10^4 files too: minutes")
    parser.add_argument("--one-memory", choices=list(MEMORY), help=argparse.SUPPRESS)
    add_output_argument(parser)
    args = parser.parse_args()
    if args.one_memory:
        measure_memory(args.one_memory)
        return
    results: dict[str, Any] = {"speed": measure_speed(args.samples, args.repeats)}
    if args.memory:
        results["memory"] = {}
        for name in MEMORY:
            command = [sys.executable, "-m", "benchmarks.ledger_audit", "--one-memory", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results["memory"].update(json.loads(done.stdout.splitlines()[-1]))
    report("ledger_audit", results, args)


if __name__ == "__main__":
    main()

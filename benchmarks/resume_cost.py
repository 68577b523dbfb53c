"""What does it cost to go on: from a saved cursor's bytes to the IDs of a rank's first microbatch?

Everything a restarted job needs is in the measured time: the cursor decoded and compared with the job's recipe, the
order, the schedule and the rank's rows constructed, and the first microbatch computed. There is no dataset and no
DataLoader; one rank of `num_replicas` is simulated. Datasets of 3,200 to 10^12 samples, 8 to 10^6 ranks, at 1 % and
99 % of the epoch.

"first_call" is the same in a fresh process, where Python and its libraries do things for the first time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tracemalloc
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any

from benchmarks._measure import add_output_argument, interleave, report
from resumable_data.cursor import (
    CoverageSpan,
    Cursor,
    Recipe,
    decode_cursor,
    encode_cursor,
    resume_cursor,
)
from resumable_data.order import Shuffle
from resumable_data.plan import loss_factor
from resumable_data.sampler import LossWeight, MicrobatchRows, RankLayout, RankRows

LENGTHS = (3_200, 10_000, 65_536, 65_537, 10**6, 10**8, 10**10, 10**12)
NUM_REPLICAS = (8, 160, 10**4, 10**6)
PROGRESS_PERCENT = (1, 99)
MICROBATCH = 4
LARGEST_TABLE = 65_536
"""Up to this length a `Shuffle` builds a table at its first use."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to go on with: an update gives `MICROBATCH` samples to each rank."""

    length: int
    num_replicas: int
    progress_percent: int

    @property
    def global_batch(self) -> int:
        return self.num_replicas * MICROBATCH

    @property
    def name(self) -> str:
        return f"{self.length} samples, {self.num_replicas} ranks, {self.progress_percent} %"

    def saved(self) -> bytes:
        """The cursor at this place, as a checkpoint holds it."""
        updates = self.length * self.progress_percent // 100 // self.global_batch
        return cursor_bytes(self.length, self.global_batch, updates)


def cursor_bytes(length: int, global_batch: int, updates: int) -> bytes:
    """The cursor of a run in its first epoch, as a checkpoint holds it."""
    recipe = Recipe(order=Shuffle(length, seed=7).describe(), global_batch=global_batch)
    samples = updates * global_batch
    lanes = (0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210)
    coverage = (CoverageSpan(0, samples, lanes),) if samples else ()
    cursor = Cursor(
        recipe=recipe,
        run_id="0" * 16,
        attempt=1,
        applied=updates,
        samples=samples,
        offset=samples,
        coverage=coverage,
    )
    return encode_cursor(cursor)


LARGEST = Case(length=10**12, num_replicas=10**6, progress_percent=99)
LARGEST_WITH_TABLE = Case(length=LARGEST_TABLE, num_replicas=8, progress_percent=99)
ACROSS_EPOCHS = Case(length=10**12 + 2 * 10**6, num_replicas=10**6, progress_percent=100)
"""Half of the rank's rows are in the next epoch, so that two epochs' permutations are made."""


def cases() -> list[Case]:
    """All cases with 100 updates or more in an epoch, so that the first update lies within one."""
    grid = product(LENGTHS, NUM_REPLICAS, PROGRESS_PERCENT)
    every = [Case(length=n, num_replicas=w, progress_percent=percent) for n, w, percent in grid]
    return [case for case in every if 100 * case.global_batch <= case.length]


def first_microbatch(
    saved: bytes, length: int, global_batch: int, num_replicas: int, microbatch: int
) -> MicrobatchRows:
    """The first microbatch of the last rank, from nothing but the saved bytes and the job's arguments."""
    cursor = decode_cursor(saved)
    order = Shuffle(length, seed=7)
    recipe = Recipe(order=order.describe(), global_batch=global_batch)
    cursor = resume_cursor(cursor, recipe)
    rows = RankRows(
        order,
        schedule=cursor.schedule(),
        layout=RankLayout(rank=num_replicas - 1, num_replicas=num_replicas, microbatch=microbatch),
        weight=LossWeight(normalize="samples", factor=loss_factor("mean", num_replicas)),
    )
    return next(rows.from_place(update=cursor.updates, epoch=cursor.epoch, offset=cursor.offset))


def resume(case: Case, saved: bytes) -> MicrobatchRows:
    """The first microbatch of the last rank of a case."""
    return first_microbatch(saved, case.length, case.global_batch, case.num_replicas, MICROBATCH)


def seconds(case: Case, saved: bytes) -> float:
    start = time.perf_counter()
    microbatch = resume(case, saved)
    elapsed = time.perf_counter() - start
    assert microbatch.ids.size == MICROBATCH
    return elapsed


def peak_bytes(case: Case, saved: bytes) -> int:
    """The most memory that Python and numpy hold at once for it."""
    tracemalloc.start()
    try:
        microbatch = resume(case, saved)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        del microbatch


def first_call_ms(case: Case, repeats: int) -> float:
    """Median over fresh processes, imports not counted."""
    code = (
        "from benchmarks.resume_cost import Case, seconds\n"
        f"print(seconds({case!r}, bytes.fromhex({case.saved().hex()!r})))"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(repeats)]
    return round(median(times) * 1e3, 3)


def flatness(medians_ms: dict[Case, float]) -> dict[str, float]:
    """Largest over smallest time when one thing varies and the others do not; the worst such ratio for each."""
    worst = {}
    for field in ("length", "num_replicas", "progress_percent"):
        groups: dict[tuple[int, ...], list[float]] = {}
        for case, value in medians_ms.items():
            rest = tuple(getattr(case, name) for name in vars(case) if name != field)
            groups.setdefault(rest, []).append(value)
        worst[field] = round(max(max(group) / min(group) for group in groups.values()), 2)
    return worst


def summarise(times_ms: dict[Case, float], note: str) -> dict[str, Any]:
    """The largest times, and how flat they are."""
    large = {case: value for case, value in times_ms.items() if case.length > LARGEST_TABLE}
    small = {case: value for case, value in times_ms.items() if case.length <= LARGEST_TABLE}
    large.pop(ACROSS_EPOCHS)
    return {
        "of_repeats": note,
        "largest_case_ms": round(times_ms[LARGEST], 4),
        "across_an_epoch_border_ms": round(times_ms[ACROSS_EPOCHS], 4),
        "slowest_above_table_ms": round(max(large.values()), 4),
        "slowest_with_table_ms": round(max(small.values()), 4),
        "largest_over_smallest_above_table": flatness(large),
    }


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=101)
    add_output_argument(parser)
    arguments = parser.parse_args()
    saved = {case: case.saved() for case in [*cases(), ACROSS_EPOCHS]}
    timed = {case.name: partial(seconds, case, data) for case, data in saved.items()}
    times = interleave(timed, arguments.repeats)
    medians_ms = {case: median(times[case.name]) * 1e3 for case in saved}
    bests_ms = {case: min(times[case.name]) * 1e3 for case in saved}
    peaks = {case: peak_bytes(case, data) for case, data in saved.items()}
    peaks_of_large = [peak for case, peak in peaks.items() if case.length > LARGEST_TABLE and case != ACROSS_EPOCHS]
    results: dict[str, Any] = {
        "summary": [summarise(medians_ms, "median"), summarise(bests_ms, "best")],
        "peak_bytes_above_table": [min(peaks_of_large), max(peaks_of_large)],
        "first_call_ms": {
            case.name: first_call_ms(case, min(7, arguments.repeats)) for case in (LARGEST, LARGEST_WITH_TABLE)
        },
        "cases": {
            case.name: {
                "median_ms": round(medians_ms[case], 4),
                "best_ms": round(bests_ms[case], 4),
                "peak_bytes": peaks[case],
            }
            for case in saved
        },
    }
    report("resume_cost", results, arguments)


if __name__ == "__main__":
    main()

"""What does it cost to go on in a run over packed rows, and how much memory does planning take?

From a saved cursor's bytes to the pieces of a rank's first microbatch: the cursor decoded, the rows constructed, the
window at the cursor planned and the first rows looked up. Documents are synthetic, with lengths computed from their
numbers and no tokens: 10^5 to 10^9 of them, at 1 % and 99 % of the epoch, `BestFit` and `Concat`. Beside it the
planning of one window, of which two may be needed (target: at most 2).

Peak memory is that of Python and numpy, for the resume and 20 windows on from there.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.cursor import Cursor, Recipe, decode_cursor, encode_cursor
from resumable_data.order import Int64Array
from resumable_data.packing import BestFit, Concat, PackedSchedule, PackedTokens, Policy
from resumable_data.packing.run_window import RunWindow
from resumable_data.plan import PackedPlace

SEQUENCE_LENGTH = 8192
GLOBAL_BATCH = 512
NUM_DOCUMENTS = (10**5, 10**7, 10**9)
POLICIES: dict[str, Policy] = {"best-fit": BestFit(), "concat": Concat()}
WINDOWS_ON = 20


class Synthetic:
    """Documents whose lengths follow from their numbers: 64 to 2,400 tokens."""

    dtype = np.dtype(np.uint16)

    def __init__(self, num_documents: int) -> None:
        self._num_documents = num_documents

    @property
    def num_tokens(self) -> int:
        return 1232 * self._num_documents

    def __len__(self) -> int:
        return self._num_documents

    def lengths(self, documents: Int64Array) -> Int64Array:
        return 64 + documents * 7919 % 2337

    def read(self, document: int, start: int, stop: int) -> Int64Array:
        raise NotImplementedError

    def describe(self) -> dict[str, int | str]:
        return {"kind": "synthetic"}

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        return "synthetic"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run at a place in its first epoch."""

    num_documents: int
    percent: int
    policy: str

    @property
    def name(self) -> str:
        return f"{self.num_documents} documents, {self.percent} %, {self.policy}"

    @property
    def packed(self) -> PackedTokens:
        return PackedTokens(
            Synthetic(self.num_documents), sequence_length=SEQUENCE_LENGTH, policy=POLICIES[self.policy]
        )

    @cached_property
    def place(self) -> PackedPlace:
        """In the middle of a window; with `Concat` that begins in the middle of a document."""
        window = self.packed.num_windows * self.percent // 100
        start = window * 65536
        carry = (start - 1, 13) if window and self.policy == "concat" else (start, 0)
        return PackedPlace(window=window, row=100, carry_document=carry[0], carry_offset=carry[1], tokens=10**6)

    @cached_property
    def saved(self) -> bytes:
        """The cursor, as a checkpoint holds it."""
        position = self.place.window * 9_000 + self.place.row
        recipe = Recipe(order=self.packed.describe(), global_batch=GLOBAL_BATCH, fingerprint="synthetic")
        cursor = Cursor(
            recipe=recipe, run_id="0" * 16, applied=position // 512, samples=position, offset=position, tokens=10**6
        )
        return encode_cursor(_with_place(cursor, self.place))


def _with_place(cursor: Cursor, place: PackedPlace) -> Cursor:
    return Cursor(**{name: getattr(cursor, name) for name in cursor.__struct_fields__} | {"packed": place})


def resume(case: Case, windows_on: int = 0) -> int:
    """Documents in the first rows after the cursor."""
    cursor = decode_cursor(case.saved)
    assert cursor.packed
    schedule = PackedSchedule(
        case.packed,
        start=cursor.packed,
        position=cursor.position,
        global_batch=GLOBAL_BATCH,
        by_tokens=False,
        epochs=None,
    )
    found = schedule.run.rows(cursor.position + np.arange(8)).num_pieces
    position = cursor.position
    for _ in range(windows_on):
        position = schedule.run.stop(position + 1)
        schedule.packed_place(schedule.settle(0, position))
    return found


def plan_window(case: Case) -> int:
    """The window at the cursor, planned alone."""
    place = case.place
    begin = PackedPlace(window=place.window, carry_document=place.carry_document, carry_offset=place.carry_offset)
    return len(RunWindow(case.packed, begin))


def peak_mib(case: Case) -> float:
    """The most memory held at once by a resume and `WINDOWS_ON` windows on."""
    windows = min(WINDOWS_ON, case.packed.num_windows - case.place.window - 1)
    tracemalloc.start()
    try:
        resume(case, windows)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    add_output_argument(parser)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for documents, percent, policy in product(NUM_DOCUMENTS, (1, 99), POLICIES):
        case = Case(num_documents=documents, percent=percent, policy=policy)
        # the thread that plans the next window works on meanwhile, and its time is nobody's wait
        times = interleave(
            {"one window": partial(plan_window, case), "resume": partial(resume, case)},
            arguments.repeats,
            time.thread_time,
        )
        summary = summarise(times, reference="one window")
        results[case.name] = {
            "resume_ms": round(summary["resume"]["median_s"] * 1e3, 2),
            "windows": round(summary["resume"]["ratio"], 2),
            "state_bytes": len(case.saved),
            "peak_mib": round(peak_mib(case), 1),
        }
    report("packed_resume", results, arguments)


if __name__ == "__main__":
    main()

"""Cases that are measured in processes of their own, forked from one that has imported everything."""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks._measure import summarise


class Cost(NamedTuple):
    """What a batch cost.

    Attributes:
        s: Seconds.
        processor_s: Processor seconds of the process that takes the batches, its workers left out.
        more_memory_mib: What this process held at most beyond what it started with, over all batches [MiB].
    """

    s: float
    processor_s: float
    more_memory_mib: float


def cost_of_batches(batches: Iterator[object], *, warm_up: int, num_batches: int) -> Cost:
    """Take batches in this process; the first ones, which start workers, are not timed. Closes `batches`."""
    memory = _largest_kib()
    for _ in range(warm_up):
        next(batches)
    processor, start = time.process_time(), time.perf_counter()
    for _ in range(num_batches):
        next(batches)
    elapsed, used = time.perf_counter() - start, time.process_time() - processor
    if hasattr(batches, "close"):
        batches.close()
    return Cost(elapsed / num_batches, used / num_batches, (_largest_kib() - memory) / 1024)


def interleave_apart(cases: Mapping[str, Callable[[], Cost]], repeats: int) -> dict[str, list[Cost]]:
    """Each case `repeats` times, in turns, each time in a process of its own."""
    found: dict[str, list[Cost]] = {name: [] for name in cases}
    for turn in range(repeats):
        names = list(cases)
        for name in names if turn % 2 == 0 else reversed(names):
            found[name].append(run_apart(cases[name]))
    return found


def run_apart(case: Callable[[], Cost]) -> Cost:
    """Run a case in a forked process.

    Raises:
        RuntimeError: It failed; what it raised is on standard error.
    """
    sys.stdout.flush()  # or the child's copy of what is buffered would be written twice
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(case, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        raise RuntimeError("a case failed in its process; its error is above")
    return Cost(*json.loads(answer))


def _answer(case: Callable[[], Cost], writing: int) -> None:
    """Run in the child, which ends here, without the parent's own clean-up."""
    try:
        os.write(writing, json.dumps(case()).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def summarise_apart(
    costs: Mapping[str, Sequence[Cost]], *, reference: str, units: Mapping[str, int] | None = None
) -> dict[str, dict[str, Any]]:
    """`summarise` of the seconds, and the medians of processor time and memory."""
    found = summarise(
        {name: [cost.s for cost in rounds] for name, rounds in costs.items()}, reference=reference, units=units
    )
    for name, rounds in costs.items():
        for key in ("processor_s", "more_memory_mib"):
            found[name][key] = statistics.median(getattr(cost, key) for cost in rounds)
    return found


def median_difference(costs: Mapping[str, Sequence[Cost]], case: str, other: str) -> float:
    """Processor seconds of `case` beyond those of `other`: the median over rounds, each within one round."""
    pairs = zip(costs[case], costs[other], strict=True)
    return statistics.median(one.processor_s - another.processor_s for one, another in pairs)


def _largest_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

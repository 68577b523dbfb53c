"""Has a hot path become slower than its committed figure?

Each case is timed in turns with a reference of the same kind of work, in the processor's time of its thread, and the
median of their ratios is compared with the committed one. Fails where a case lost more than a quarter of its speed in
two measurements. ``--update`` writes the ratios of this machine as the committed ones; they are of the processor, and
belong to the machine that is named beside them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
import xxhash

import resumable_data as rd
from benchmarks._measure import add_output_argument, interleave, report
from benchmarks._verdicts import LARGEST_LOSS, failing
from benchmarks.competitors._interface import Numbers
from benchmarks.ledger_audit import Case as LedgerCase
from benchmarks.ledger_audit import audit, order_alone, write_ledger
from benchmarks.packing_speed import log_normal
from benchmarks.resume_cost import LARGEST, resume
from resumable_data.checkpoint.digest import box_digest
from resumable_data.order import Shuffle
from resumable_data.packing import BestFit, RowBuffers, gather
from resumable_data.plan import BatchPlan
from resumable_data.sources import open_tokens

COMMITTED = Path(__file__).parent / "results" / "guard.json"
SETUPS = 3
"""How often a case is set up anew: where its arrays happen to lie in memory changes a ratio by a tenth or more."""
Run = Callable[[], object]


class Pair(NamedTuple):
    """A hot path, and work of the same kind that is not ours."""

    ours: Run
    reference: Run


def _python_work() -> object:
    """What an interpreter does: objects, a dictionary, calls."""
    seen: dict[int, str] = {}
    for number in range(2000):
        seen[number * 7919 % 2003] = str(number)
    return sorted(seen)


def remap(folder: Path) -> Pair:
    """The first microbatch after a move, at 10^12 samples and 10^6 ranks."""
    saved = LARGEST.saved()
    return Pair(lambda: [resume(LARGEST, saved) for _ in range(5)], _python_work)


def planning(folder: Path) -> Pair:
    """All rows of one update of 10^6 ranks."""
    plan = BatchPlan(global_batch=4 * 10**6 + 1, microbatch=2, num_replicas=10**6)
    return Pair(plan.shares, lambda: np.arange(8 * 10**6, dtype=np.int64) * 3)


def order_ids(folder: Path) -> Pair:
    """IDs of a shuffle of 10^9."""
    order, offsets = Shuffle(10**9), np.arange(1 << 16, dtype=np.int64)
    value, shifted = offsets.astype(np.uint64), np.empty(offsets.size, dtype=np.uint64)

    def mixing() -> object:
        for _ in range(8):
            np.right_shift(value, np.uint64(29), out=shifted)
            np.bitwise_xor(value, shifted, out=value)
            np.multiply(value, np.uint64(0xBF58476D1CE4E5B9), out=value)
        return value

    return Pair(lambda: order.ids(0, offsets), mixing)


def small_draw(folder: Path) -> Pair:
    """IDs of one microbatch of 8."""
    order, offsets = Shuffle(10**9), np.arange(8, dtype=np.int64)
    return Pair(lambda: [order.ids(0, offsets) for _ in range(50)], _python_work)


class _Stream:
    """The next batches of a loader that never ends."""

    def __init__(self, batches: Iterator[object]) -> None:
        self._batches = batches

    def __call__(self) -> None:
        for _ in range(200):
            next(self._batches)


def _our_batches(ledger: rd.Ledger | None) -> Iterator[object]:
    loader = rd.ResumableLoader(Numbers(10**6), global_batch=8, microbatch=8, ledger=ledger)
    for microbatch in loader:
        yield microbatch
        loader.commit()


def _plain_batches() -> Iterator[object]:
    while True:
        yield from torch.utils.data.DataLoader(Numbers(10**6), batch_size=8)


def loader_no_ledger(folder: Path) -> Pair:
    """Microbatches of 8 free items, beside a plain DataLoader."""
    return Pair(_Stream(_our_batches(None)), _Stream(_plain_batches()))


def loader_digests(folder: Path) -> Pair:
    """The same with a ledger of digests."""
    return Pair(_Stream(_our_batches(rd.Ledger(folder / "digests"))), _Stream(_plain_batches()))


def loader_full(folder: Path) -> Pair:
    """The same with a ledger of IDs."""
    return Pair(_Stream(_our_batches(rd.Ledger(folder / "full", ids="full"))), _Stream(_plain_batches()))


def audit_speed(folder: Path) -> Pair:
    """An audit, beside the IDs of the same positions."""
    case = LedgerCase(512, 1 << 20)
    write_ledger(case, folder / "audited")
    return Pair(partial(audit, folder / "audited", case.num_ids), partial(order_alone, case))


def digest_speed(folder: Path) -> Pair:
    """The digest of a tensor's bytes, beside xxh3."""
    data: Any = np.random.default_rng(1).integers(0, 256, 1 << 24, dtype=np.uint8)
    shape = (1 << 10, 1 << 12)
    return Pair(partial(box_digest, data, 4, shape, (0, 0), shape), lambda: xxhash.xxh3_64_intdigest(data))


def gather_rows(folder: Path) -> Pair:
    """Rows of packed documents, beside as many slices of the tokens one after the other."""
    lengths = log_normal(4096)
    values = np.random.default_rng(3).integers(0, 50_000, int(lengths.sum()), dtype=np.uint16)
    source = open_tokens(values, lengths=lengths.tolist())
    rows = BestFit().pack(lengths, 2048).of_documents(np.arange(len(lengths))).take(np.arange(64))
    out = RowBuffers.empty(64, 2048)

    edges = np.linspace(0, out.tokens.size, int(rows.edges[-1]) + 1).astype(np.int64).tolist()

    def slices() -> object:
        tokens, labels = out.tokens.reshape(-1), out.labels.reshape(-1)
        tokens[:] = np.concatenate([values[begin:end] for begin, end in itertools.pairwise(edges)])
        labels[:-1] = tokens[1:]
        return out

    return Pair(lambda: gather(source, rows, out=out), slices)


def packing(folder: Path) -> Pair:
    """Documents planned into rows."""
    lengths = log_normal(1 << 15)
    return Pair(lambda: BestFit().pack(lengths, 2048), lambda: np.sort(np.tile(lengths, 16)))


CASES: dict[str, Callable[[Path], Pair]] = {
    "first microbatch after a move": remap,
    "rows of 10^6 ranks": planning,
    "IDs of a shuffle": order_ids,
    "IDs of one microbatch": small_draw,
    "loader, no ledger": loader_no_ledger,
    "loader, ledger of digests": loader_digests,
    "loader, ledger of IDs": loader_full,
    "audit": audit_speed,
    "digest of a tensor": digest_speed,
    "packed rows": gather_rows,
    "packing": packing,
}


def measure(repeats: int, names: Sequence[str]) -> dict[str, float]:
    """The ratio of each case: the median over all rounds."""
    found = {}
    for name in names:
        ratios: list[float] = []
        for _ in range(SETUPS):
            with tempfile.TemporaryDirectory() as folder:
                pair = CASES[name](Path(folder))
                seconds = interleave(pair._asdict(), repeats, time.thread_time)
            ratios += (a / b for a, b in zip(seconds["ours"], seconds["reference"], strict=True))
        found[name] = median(ratios)
        print(f"{name}: {found[name]:.4g} times its reference", file=sys.stderr)
    return found


def main() -> int:
    """Compare, or write what is to be compared with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--update", action="store_true", help="write the committed ratios anew")
    add_output_argument(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.update:
        arguments.output = COMMITTED
        report("guard", {"ratios": measure(arguments.repeats, list(CASES))}, arguments)
        return 0
    committed = json.loads(COMMITTED.read_text())["results"]["ratios"]
    lost = failing(committed, partial(measure, arguments.repeats))
    for name, loss in lost.items():
        print(f"{name}: lost {loss:.0%} of its speed, twice; at most {LARGEST_LOSS:.0%} is accepted")
    if lost:
        print("Profile it, or say in the commit why it is worth that and write the figures anew with --update.")
    else:
        print(f"{len(committed)} cases, none lost more than {LARGEST_LOSS:.0%} of its speed")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())

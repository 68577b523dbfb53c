"""How fast do packed rows become the arrays of a batch, against the same arrays written from one run of tokens?

131,072 tokens a batch out of a mapped file of uint16 tokens, in the page cache: documents of log-normal length (median
600, mean 1,200) packed by BestFit, in random order. The limit casts as many tokens that lie one after another at a
random place, shifts them for the labels and writes an arange; it knows no documents. Three kinds of memory:

* new: arrays of the call are new memory, page by page, as large ones are with glibc until it has learned to keep them;
* kept: malloc hands out again what was freed before;
* reused: the caller's buffers.

``share`` is the speed of gathering over that of the limit with the same kind of memory, the median over rounds. Targets
at row length 8192: 0.5 with new memory, 0.3 with reused. And faster than other loaders (see `_token_loaders`), with
kept memory; ``ratio`` there is how many times as long they take.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measure import add_output_argument, interleave, report, summarise
from benchmarks._store import NOT_INSTALLED
from benchmarks._token_loaders import OTHERS, NotInstalledError
from benchmarks.packing_speed import CLOCKS, log_normal
from resumable_data.packing import BestFit, PackedRows, RowBuffers, gather
from resumable_data.sources import OffsetTokens, open_raw

NUM_TOKENS = 1 << 27
BATCH = 1 << 17
ROW_LENGTHS = (2048, 8192, 32768)
TARGETS = {"new": 0.5, "reused": 0.3}
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # names of glibc's mallopt


def keep_freed_memory() -> None:
    """Let malloc hand out again what was freed; nothing where there is no glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 25)
        mallopt(_TRIM_THRESHOLD, 1 << 30)


def give_back_freed_memory() -> None:
    """Return what was freed to the system, also where it lies between what is used; nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def open_corpus(path: Path) -> OffsetTokens:
    """A file of documents."""
    random = np.random.default_rng(3)
    random.integers(0, 50_000, NUM_TOKENS, dtype=np.uint16).tofile(path)
    lengths = log_normal(NUM_TOKENS // 1000)
    edges = np.cumsum(lengths)
    lengths = lengths[edges <= NUM_TOKENS]
    return open_raw(path, dtype=np.uint16, lengths=np.append(lengths, NUM_TOKENS - lengths.sum()))


def packed_rows(source: OffsetTokens, row_length: int) -> PackedRows:
    """Rows of whole documents from all over the file, in random order."""
    random = np.random.default_rng(7)
    documents = random.permutation(len(source) - 1)[: 1 << 16]
    rows = BestFit().pack(source.lengths(documents), row_length).of_documents(documents)
    return rows.take(random.permutation(len(rows)))


class Limit:
    """The same arrays, of tokens that lie one after another."""

    def __init__(self, source: OffsetTokens) -> None:
        self.tokens = source.tokens
        self.ramp = np.arange(BATCH, dtype=np.int32)
        self.random = np.random.default_rng(8)

    def _next(self) -> Any:
        start = int(self.random.integers(0, NUM_TOKENS - BATCH))
        return self.tokens[start : start + BATCH]

    def new(self) -> object:
        tokens = self._next().astype(np.int64)
        labels = np.empty_like(tokens)
        labels[:-1] = tokens[1:]
        labels[-1] = -100
        return tokens, labels, np.arange(BATCH, dtype=np.int32)

    def into(self, out: RowBuffers) -> object:
        tokens, labels, position_ids = (array.reshape(-1) for array in (out.tokens, out.labels, out.position_ids))
        tokens[:] = self._next()
        labels[:-1] = tokens[1:]
        labels[-1] = -100
        position_ids[:] = self.ramp
        return out

    def memcpy(self, out: RowBuffers, other: RowBuffers) -> object:
        """The bytes of the outputs, copied."""
        np.copyto(out.tokens, other.tokens)
        np.copyto(out.labels, other.labels)
        np.copyto(out.position_ids, other.position_ids)
        return out


def timed(run: Callable[[], object], clock: Callable[[], float], *, is_new: bool = False) -> Callable[[], float]:
    """The seconds of a call, with memory of one kind; what it returns is freed untimed."""

    def case() -> float:
        if is_new:
            give_back_freed_memory()
        started = clock()
        result = run()
        seconds = clock() - started
        del result
        return seconds

    return case


def batches(rows: PackedRows, num_rows: int) -> Callable[[], PackedRows]:
    """Another batch of rows at each call."""
    parts = [rows.take(np.arange(at, at + num_rows)) for at in range(0, len(rows) - num_rows + 1, num_rows)]
    numbers = count()
    return lambda: parts[next(numbers) % len(parts)]


def against_limit(source: OffsetTokens, rows: PackedRows, repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Tokens per second of gathering and of the limit, and their ratio, for each kind of memory."""
    num_rows = BATCH // rows.row_length
    following, limit = batches(rows, num_rows), Limit(source)
    out, other = (RowBuffers.empty(num_rows, rows.row_length) for _ in range(2))
    for array in (other.tokens, other.labels, other.position_ids):
        array.fill(1)
    cases = {
        "limit, new": timed(limit.new, clock, is_new=True),
        "gather, new": timed(lambda: gather(source, following()), clock, is_new=True),
        "limit, kept": timed(limit.new, clock),
        "gather, kept": timed(lambda: gather(source, following()), clock),
        "limit, reused": timed(lambda: limit.into(out), clock),
        "gather, reused": timed(lambda: gather(source, following(), out=out), clock),
        "memcpy, reused": timed(lambda: limit.memcpy(out, other), clock),
    }
    seconds = interleave(cases, repeats)
    found: dict[str, Any] = {"tokens": summarise(seconds, units=dict.fromkeys(cases, BATCH)), "share": {}}
    for kind in ("new", "kept", "reused"):
        pair = {name: seconds[f"{name}, {kind}"] for name in ("limit", "gather")}
        found["share"][kind] = summarise(pair, reference="gather")["limit"]["ratio"]
    found["pieces_per_batch"] = rows.num_pieces / (len(rows) / num_rows)
    return found


def against_others(
    source: OffsetTokens, path: Path, rows: PackedRows, repeats: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Tokens per second of gathering and of other loaders."""
    num_rows = BATCH // rows.row_length
    following = batches(rows, num_rows)
    cases: dict[str, Callable[[], object]] = {"gather": lambda: gather(source, following())}
    missing: dict[str, Any] = {}
    for name, build in OTHERS.items():
        try:
            cases[name] = build(source, path, rows, num_rows)
        except NotInstalledError as error:
            missing[name] = {"outcome": NOT_INSTALLED, "why": str(error)}
    found = summarise(interleave(cases, repeats, clock), reference="gather", units=dict.fromkeys(cases, BATCH))
    return {**found, **missing}


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="wall, or the processor's time, for a machine that is busy"
    )
    add_output_argument(parser)
    arguments = parser.parse_args()
    clock = CLOCKS[arguments.clock]
    results: dict[str, Any] = {"clock": arguments.clock, "limit": {}, "others": {}}
    met: dict[str, bool] = {}
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.bin"
        source = open_corpus(path)
        for row_length in ROW_LENGTHS:
            rows = packed_rows(source, row_length)
            results["limit"][str(row_length)] = against_limit(source, rows, arguments.repeats, clock)
        for kind, least in TARGETS.items():
            met[f"{least} of the limit, {kind}, at 8192"] = results["limit"]["8192"]["share"][kind] >= least
        rows = packed_rows(source, 8192)
        results["others"] = against_others(source, path, rows, max(arguments.repeats // 10, 3), clock)
        for name, found in results["others"].items():
            if name != "gather" and "ratio" in found:
                met[f"faster than {name}"] = found["ratio"] > 1
    results["targets_met"] = met
    report("packed_gather", results, arguments)


if __name__ == "__main__":
    main()

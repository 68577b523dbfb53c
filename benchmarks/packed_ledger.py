"""What do the pieces of packed rows cost in a ledger: bytes, writing, and the audit that counts tokens by them?

Ledgers of one epoch on 2 ranks, written by the real writer: digests, and full IDs, which are the pieces, 64 or 8 rows a
microbatch, and 8 folded to 512. Documents have log-normal lengths (median 600, mean 1,200) and no tokens; `BestFit`.
Audits are processor time of one process, beside that of planning all rows, which every audit of packed rows has to do.
Writing is measured with the clock of the thread, and records nothing but deliveries and commits.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.audit import audit_ledger
from resumable_data.cursor import new_cursor
from resumable_data.ledger import Ledger, digest_ids
from resumable_data.ledger.row_ids import row_ids
from resumable_data.ledger.row_pieces import RowPieces
from resumable_data.order import Int64Array
from resumable_data.packing import PackedRun, PackedTokens

NUM_REPLICAS = 2
FOLD_ROWS = 512


class Lengths:
    """Documents that are nothing but lengths."""

    dtype = np.dtype(np.uint16)

    def __init__(self, num_documents: int) -> None:
        lengths = np.random.default_rng(0).lognormal(np.log(600), np.sqrt(2 * np.log(2)), num_documents)
        self._lengths = np.maximum(lengths.astype(np.int64), 1)

    @property
    def num_tokens(self) -> int:
        return int(self._lengths.sum())

    def __len__(self) -> int:
        return self._lengths.size

    def lengths(self, documents: Int64Array) -> Int64Array:
        return self._lengths[documents]

    def read(self, document: int, start: int, stop: int) -> Int64Array:
        raise NotImplementedError

    def describe(self) -> dict[str, int | str]:
        return {"kind": "lengths"}

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        return "lengths"


@dataclass(frozen=True)
class Case:
    """A ledger: its layout and what the records hold."""

    ids: str
    microbatch: int
    fold_rows: int = 0

    @property
    def num_microbatches(self) -> int:
        """Of an update, on each rank."""
        return max(1, self.fold_rows // self.microbatch)

    @property
    def global_batch(self) -> int:
        """Rows of one update."""
        return self.microbatch * self.num_microbatches * NUM_REPLICAS


def write_ledger(case: Case, packed: PackedTokens, path: Path) -> dict[str, float]:
    """Write the ledger of a run up to its last whole update; what that took."""
    start = new_cursor(
        packed, global_batch=case.global_batch, tail="carry", normalize="tokens", fingerprint=packed.fingerprint()
    )
    ledger = Ledger(path, ids=case.ids, fold_rows=case.fold_rows, on_error="raise")
    claim = ledger.claim(
        start, num_replicas=NUM_REPLICAS, microbatch=case.microbatch, epochs=1, run_id="00000000000000aa"
    )
    writers = [ledger.open_rank(claim, rank=rank) for rank in range(NUM_REPLICAS)]
    run, seconds, num_rows = PackedRun(packed, epochs=1), 0.0, 0
    while run.stop(num_rows + case.global_batch) >= num_rows + case.global_batch:
        for rank, writer in enumerate(writers):
            positions = np.arange(num_rows + rank, num_rows + case.global_batch, NUM_REPLICAS)
            seconds += record(writer, case, num_rows // case.global_batch, positions, run)
        num_rows += case.global_batch
        run.forget(num_rows)
    for writer in writers:
        writer.close()
    num_bytes = sum(file.stat().st_size for file in path.rglob("*.ledger"))
    return {
        "rows": num_rows,
        "bytes_per_row": num_bytes / num_rows,
        "writer_us_per_microbatch": seconds * 1e6 / (num_rows / case.microbatch),
    }


def record(writer: Any, case: Case, update: int, positions: Int64Array, run: PackedRun) -> float:
    """Record one update of one rank; the seconds that it took."""
    parts = []
    for own in positions.reshape(-1, case.microbatch):
        rows = run.rows(own)
        ids = row_ids(rows)
        parts.append((int(own[0]), rows, ids, digest_ids(ids)))
    started = time.thread_time()
    for index, (start, rows, ids, digest) in enumerate(parts):
        writer.delivered(
            update,
            index,
            start,
            NUM_REPLICAS,
            case.microbatch,
            0,
            0,
            digest,
            ids if writer.needs_ids else None,
            pieces=RowPieces.of_first(rows, case.microbatch) if writer.needs_pieces else None,
            is_last=index == len(parts) - 1,
        )
    writer.commit(update, True)
    return time.thread_time() - started


def audit(path: Path, packed: PackedTokens, num_rows: int, *, has_pieces: bool) -> None:
    """Audit a ledger, and make sure that it was proven, by pieces where it holds them."""
    found = audit_ledger(path, packed=packed)
    if (found.verdict, found.samples, bool(found.piece_rows)) != ("proven", num_rows, has_pieces):
        raise SystemExit(found.to_text())


def plan(packed: PackedTokens) -> None:
    """All rows of the epoch, with their IDs."""
    for _ in PackedRun(packed, epochs=1).windows():
        pass


def measure(num_documents: int, row_length: int, repeats: int) -> dict[str, Any]:
    """Ledgers of several kinds, audited in turns."""
    packed = PackedTokens(Lengths(num_documents), sequence_length=row_length)
    cases = {
        f"{ids} {text}": Case(ids, microbatch, fold)
        for text, microbatch, fold in (("64", 64, 0), ("8", 8, 0), ("8, folded", 8, FOLD_ROWS))
        for ids in ("digest", "full")
    }
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Any] = {"planning alone": partial(plan, packed)}
        units = {"planning alone": packed.count_rows()}
        for name, case in cases.items():
            path = Path(folder) / name.replace(" ", "-")
            results[name] = write_ledger(case, packed, path)
            units[name] = int(results[name]["rows"])
            runs[name] = partial(audit, path, packed, units[name], has_pieces=case.ids == "full")
        seconds = interleave(runs, repeats, time.process_time)
        for name in ("digest 64", "full 64"):
            tracemalloc.start()
            runs[name]()
            results[name]["audit_peak_mib"] = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
    for name, figures in summarise(seconds, reference="planning alone", units=units).items():
        results.setdefault(name, {}).update(figures)
    return results


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=5)
    add_output_argument(parser)
    args = parser.parse_args()
    results = {f"rows of {length}": measure(args.documents, length, args.repeats) for length in (2048, 8192)}
    report("packed_ledger", results, args)


if __name__ == "__main__":
    main()

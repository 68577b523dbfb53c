"""How many tokens per second does a whole loader hand to the loop, beside other loaders of the same file?

A mapped file of uint16 tokens in the page cache, batches of 32,768 tokens as int64, with labels, as rows of 2,048 and
of 8,192:

* ours: documents packed by best fit, with positions and document borders, each update committed, a ledger of digests;
* rows of one file: a plain DataLoader whose item is a row's tokens at a random place and their labels; it knows no
  documents;
* nanoGPT: the ``get_batch`` of its train.py, which has no workers;
* TRL: rows of a packed Hugging Face dataset, in a DataLoader with the collator of TRL's trainer;
* MosaicML Streaming: packed rows written as MDS, read by its StreamingDataLoader, labels by a shift.

``memcpy`` copies the bytes of tokens and labels from memory to memory, and is what no loader can exceed. ``ratio`` is
the time of a batch over ours of the same round: above 1, ours is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data

from benchmarks._apart import Cost, cost_of_batches, interleave_apart, summarise_apart
from benchmarks._measure import add_only_argument, add_output_argument, report
from benchmarks._store import NOT_INSTALLED
from benchmarks._token_loaders import NotInstalledError, nanogpt, pack_for_trl
from benchmarks.packed_gather import open_corpus, packed_rows
from resumable_data import PackedTokens, ResumableLoader
from resumable_data.packing import gather
from resumable_data.sources import OffsetTokens

BATCH = 32_768
ROW_LENGTHS = (2048, 8192)
WARM_UP_BATCHES = 32
Batches = Callable[[int], Iterator[Any]]


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Item k is the k-th stretch of a file, and its labels."""

    def __init__(self, path: Path, row_length: int) -> None:
        self._tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self._length = row_length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = index * self._length
        part = torch.from_numpy(self._tokens[begin : begin + self._length + 1].astype(np.int64))
        return part[:-1], part[1:]


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def ours(source: OffsetTokens, folder: Path, row_length: int) -> Batches:
    packed, num_rows = PackedTokens(source, sequence_length=row_length), BATCH // row_length

    def run(num_workers: int) -> Iterator[Any]:
        with tempfile.TemporaryDirectory(dir=folder) as ledger:
            loader = ResumableLoader(
                packed, global_batch=num_rows, microbatch=num_rows, num_workers=num_workers, ledger=ledger
            )
            with loader:
                for microbatch in loader:
                    yield microbatch
                    loader.commit()

    return run


def rows_of_one_file(source: OffsetTokens, folder: Path, row_length: int) -> Batches:
    rows = Rows(folder / "tokens.bin", row_length)
    return lambda num_workers: _endless(
        torch.utils.data.DataLoader(rows, batch_size=BATCH // row_length, shuffle=True, num_workers=num_workers)
    )


def nanogpt_loop(source: OffsetTokens, folder: Path, row_length: int) -> Batches:
    get_batch = nanogpt(source, folder / "tokens.bin", packed_rows(source, row_length), BATCH // row_length)
    return lambda num_workers: iter(get_batch, None)


def trl_loader(source: OffsetTokens, folder: Path, row_length: int) -> Batches:
    packed, collate = pack_for_trl(source, row_length)
    return lambda num_workers: _endless(
        torch.utils.data.DataLoader(
            packed, batch_size=BATCH // row_length, shuffle=True, collate_fn=collate, num_workers=num_workers
        )
    )


def streaming_loader(source: OffsetTokens, folder: Path, row_length: int) -> Batches:
    try:
        from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
    except Exception as error:
        raise NotInstalledError(f"{type(error).__name__}: {error}") from None
    rows = packed_rows(source, row_length)
    tokens = gather(source, rows.take(np.arange(min(len(rows), 4096)))).tokens.astype(np.uint16)
    place = folder / f"mds-{row_length}"
    with contextlib.redirect_stdout(io.StringIO()):
        with MDSWriter(out=str(place), columns={"tokens": "ndarray:uint16"}) as writer:
            for row in tokens:
                writer.write({"tokens": row})
        dataset: Any = StreamingDataset(local=str(place), shuffle=True, batch_size=BATCH // row_length)

    def run(num_workers: int) -> Iterator[Any]:
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH // row_length, num_workers=num_workers, collate_fn=_shifted, drop_last=True
        )
        return _endless(loader)

    return run


def _shifted(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.stack([torch.from_numpy(sample["tokens"].astype(np.int64)) for sample in samples])
    labels = torch.full_like(tokens, -100)
    labels[:, :-1] = tokens[:, 1:]
    return tokens, labels


def memcpy(source: OffsetTokens, folder: Path, row_length: int) -> Batches:
    one, other = (np.ones(2 * BATCH, dtype=np.int64) for _ in range(2))

    def run(num_workers: int) -> Iterator[Any]:
        while True:
            np.copyto(one, other)
            yield one

    return run


CASES: dict[str, Callable[[OffsetTokens, Path, int], Batches]] = {
    "ours": ours,
    "rows of one file": rows_of_one_file,
    "nanoGPT": nanogpt_loop,
    "TRL": trl_loader,
    "MosaicML Streaming": streaming_loader,
    "memcpy": memcpy,
}
NOT_PACKED = ("ours", "rows of one file", "nanoGPT", "memcpy")
"""Those that pack and write nothing beforehand."""
WITHOUT_WORKERS = {"nanoGPT", "memcpy"}


def build_all(
    source: OffsetTokens, folder: Path, row_length: int, names: Sequence[str]
) -> tuple[dict[str, Batches], dict[str, Any]]:
    """The loaders of these names, and what is told of those that are not installed."""
    builders: dict[str, Batches] = {}
    missing: dict[str, Any] = {}
    for case in names:
        try:
            builders[case] = CASES[case](source, folder, row_length)
        except NotInstalledError as error:
            missing[case] = {"outcome": NOT_INSTALLED, "why": str(error)}
    return builders, missing


def measure(builders: dict[str, Batches], num_workers: int, repeats: int, num_batches: int) -> dict[str, Any]:
    """What a batch of each costs, in a process of its own for each round."""
    cases = {name: partial(_round, build, num_workers, num_batches) for name, build in builders.items()}
    return summarise_apart(interleave_apart(cases, repeats), reference="ours", units=dict.fromkeys(cases, BATCH))


def _round(build: Batches, num_workers: int, num_batches: int) -> Cost:
    return cost_of_batches(build(num_workers), warm_up=WARM_UP_BATCHES, num_batches=num_batches)


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--short", action="store_true", help="3 repeats of 50 batches, longer rows with fewer loaders")
    add_only_argument(parser)
    add_output_argument(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        source = open_corpus(Path(name) / "tokens.bin")
        for row_length in ROW_LENGTHS:
            names = NOT_PACKED if arguments.short and row_length > ROW_LENGTHS[0] else tuple(CASES)
            if not any(arguments.only in one for one in names):
                continue
            builders, missing = build_all(
                source, Path(name), row_length, [one for one in names if one == "ours" or arguments.only in one]
            )
            for num_workers in (0, 1, 2):
                chosen = {
                    case: one for case, one in builders.items() if num_workers == 0 or case not in WITHOUT_WORKERS
                }
                repeats, num_batches = (3, 50) if arguments.short else (arguments.repeats, 200)
                found = measure(chosen, num_workers, repeats, num_batches) | missing
                case = f"rows of {row_length:,}, {num_workers} workers"
                results[case] = {name: one for name, one in found.items() if arguments.only in name}
    report("packed_loader", results, arguments)


if __name__ == "__main__":
    main()

"""How others fill a batch with tokens, each as its users are told to; what is not installed says so.

All read the same documents of log-normal length and give 131,072 tokens as int64 torch tensors, with labels. None does
more than `resumable_data.packing.gather`:

* nanoGPT: windows at random places of one file; no document is kept apart, there are no positions.
* Hugging Face datasets with TRL: documents packed beforehand by `trl.pack_dataset`, batches by TRL's own collator with
  positions that restart, flattened.
* MosaicML streaming: rows packed and written as MDS beforehand; each sample a row of tokens, labels by a shift, no
  positions.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from resumable_data.packing import PackedRows, gather
from resumable_data.sources import OffsetTokens

Batch = Callable[[], object]


class NotInstalledError(Exception):
    """A package that is not there, or cannot be imported."""


def nanogpt(source: OffsetTokens, path: Path, rows: PackedRows, num_rows: int) -> Batch:
    """``get_batch`` of nanoGPT's train.py, which maps the file again for each batch."""
    import torch

    row_length = rows.row_length
    random = np.random.default_rng(4)

    def run() -> object:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        places = random.integers(0, len(data) - row_length, num_rows)
        x = torch.stack([torch.from_numpy(data[i : i + row_length].astype(np.int64)) for i in places])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + row_length].astype(np.int64)) for i in places])
        return x, y

    return run


def pack_for_trl(source: OffsetTokens, row_length: int) -> tuple[Any, Callable[[list[Any]], object]]:
    """Documents as a packed dataset, and the collator of TRL's trainer."""
    try:
        import datasets
        from trl import pack_dataset
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
    except Exception as error:
        raise NotInstalledError(f"{type(error).__name__}: {error}") from None
    documents = [source.read(number, 0, int(source.lengths(np.array([number]))[0])) for number in range(4096)]
    plain = datasets.Dataset.from_dict({"input_ids": [document.astype(np.int32) for document in documents]})
    datasets.disable_progress_bars()
    packed = pack_dataset(plain, row_length, "bfd_split", map_kwargs={"batch_size": len(documents)})
    return packed, DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)


def trl_packing(source: OffsetTokens, path: Path, rows: PackedRows, num_rows: int) -> Batch:
    """Rows of a packed dataset, put together by the collator of TRL's trainer."""
    packed, collate = pack_for_trl(source, rows.row_length)
    random = np.random.default_rng(5)

    def run() -> object:
        return collate([packed[int(row)] for row in random.integers(0, len(packed), num_rows)])

    return run


def streaming(source: OffsetTokens, path: Path, rows: PackedRows, num_rows: int) -> Batch:
    """Rows out of local MDS shards, stacked, with labels."""
    try:
        import torch
        from streaming import MDSWriter, StreamingDataset
    except Exception as error:
        raise NotInstalledError(f"{type(error).__name__}: {error}") from None
    tokens = gather(source, rows.take(np.arange(min(len(rows), 8 * num_rows)))).tokens.astype(np.uint16)
    folder = path.parent / f"mds-{rows.row_length}"
    with contextlib.redirect_stdout(io.StringIO()):
        with MDSWriter(out=str(folder), columns={"tokens": "ndarray:uint16"}) as writer:
            for row in tokens:
                writer.write({"tokens": row})
        dataset: Any = StreamingDataset(local=str(folder), shuffle=False, batch_size=num_rows)
    random = np.random.default_rng(6)

    def run() -> object:
        places = random.integers(0, len(tokens), num_rows).tolist()
        x = torch.stack([torch.from_numpy(dataset[place]["tokens"].astype(np.int64)) for place in places])
        y = torch.full_like(x, -100)
        y[:, :-1] = x[:, 1:]
        return x, y

    return run


OTHERS: dict[str, Callable[[OffsetTokens, Path, PackedRows, int], Batch]] = {
    "nanoGPT": nanogpt,
    "datasets + TRL": trl_packing,
    "MosaicML streaming": streaming,
}

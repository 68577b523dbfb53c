"""Other packers, on documents that were cut to the length of a row; what is not installed says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Packing = Callable[[], object]


def trl(pieces: list[int], row_length: int) -> Packing:
    """What `trl.pack_dataset` runs on a table; the tokens, which it puts in order as well, are one byte each."""
    import pyarrow
    from trl.data_utils import _pack_bfd

    edges = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int32)
    tokens = pyarrow.array(np.zeros(edges[-1], dtype=np.int8))
    table: Any = pyarrow.table({"input_ids": pyarrow.ListArray.from_arrays(edges, tokens)})
    return lambda: _pack_bfd(table, row_length, "split")


def olmo_core(pieces: list[int], row_length: int) -> Packing:
    """The packer of OLMo-core's packed datasets; its tree is built before."""
    from olmo_core.data.utils import InstancePacker

    edges = np.concatenate([[0], np.cumsum(pieces)])
    documents = np.stack([edges[:-1], edges[1:]], axis=1).astype(np.uint64)
    packer = InstancePacker(row_length)
    return lambda: packer.pack_documents(documents)


OTHERS: dict[str, Callable[[list[int], int], Packing]] = {"TRL": trl, "OLMo-core": olmo_core}


def installed() -> tuple[dict[str, Callable[[list[int], int], Packing]], dict[str, str]]:
    """Those that work here, and what keeps the others from it."""
    found, missing = {}, {}
    for name, prepare in OTHERS.items():
        try:
            prepare([1, 2], 4)()
            found[name] = prepare
        except Exception as error:
            missing[name] = f"not installed ({type(error).__name__}: {error})"
    return found, missing

"""The orders of earlier versions.

``tests/golden/orders.json`` and ``block-orders.json`` never change within a version of an order: a checkpoint that was
written with that version counts positions in it. A change of algorithm raises the order's ``version`` and adds lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_hexdigest

from resumable_data.order import Int64Array, order_from_description

GOLDEN = Path(__file__).parents[2] / "golden"
LINES: list[dict[str, Any]] = [
    line for name in ("orders.json", "block-orders.json") for line in json.loads((GOLDEN / name).read_text())["orders"]
]


def probe(n: int) -> Int64Array:
    """Up to 40,000 offsets from each end of ``[0, n)``."""
    offsets = np.concatenate([np.arange(min(n, 40_000)), np.arange(max(0, n - 40_000), n)])
    return offsets.astype(np.int64)


def golden(description: dict[str, Any], epoch: int) -> dict[str, Any]:
    """The line of an order and epoch: the first IDs, and the hash of those at `probe` as little-endian int64."""
    order = order_from_description(description)
    ids = order.ids(epoch, probe(len(order)))
    return {
        "description": description,
        "epoch": epoch,
        "first": ids[:8].tolist(),
        "xxh3_64": xxh3_64_hexdigest(ids.astype("<i8").tobytes()),
    }


@pytest.mark.parametrize(
    "line", LINES, ids=lambda line: "-".join(map(str, [*line["description"].values(), line["epoch"]]))
)
def test_orders_are_what_they_were(line: dict[str, Any]) -> None:
    """The same description, epoch and offsets give the same IDs for ever, on every machine."""
    assert golden(line["description"], line["epoch"]) == line


def test_there_are_golden_orders_of_every_kind() -> None:
    """Every kind is held, and every way in which Shuffle and the windows of BlockShuffle compute."""
    lengths = {line["description"]["length"] for line in LINES if line["description"]["kind"] == "shuffle"}
    assert {line["description"]["kind"] for line in LINES} == {
        "block-shuffle",
        "sequential",
        "shuffle",
        "torch_shuffle",
    }
    assert {1, 2, 65_536, 65_537, 2**32, 2**32 + 1, 10**12, 2**53 + 1, 2**62} <= lengths
    windows = {line["description"]["window"] for line in LINES if line["description"]["kind"] == "block-shuffle"}
    assert {1, 64, 65, 512, 1024, 1025, 2**32} <= windows

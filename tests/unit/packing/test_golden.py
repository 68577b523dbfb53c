"""The rows of earlier versions.

``tests/golden/packing.json`` never changes within a version of a policy: a checkpoint that was written with it counts
rows. A change of any row raises the version of the policy, or of the plan of windows, and adds lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_hexdigest

from resumable_data import Sequential
from resumable_data.packing import WindowPlan, policy_from_description

GOLDEN = Path(__file__).parents[2] / "golden" / "packing.json"
LINES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["rows"]


def golden(policy: dict[str, Any], arguments: dict[str, int], num_documents: int, window: int) -> dict[str, Any]:
    """A window's first row, its number of rows, and the hash of all its arrays as little-endian int64."""
    lengths = np.arange(num_documents) * 7919 % 1009 * (np.arange(num_documents) % 7)
    plan = WindowPlan(Sequential(num_documents), lengths.take, policy_from_description(policy), **arguments)
    rows = plan.plan(5, window, plan.carry_into(5, window)).rows
    arrays = (rows.document, rows.start, rows.stop, rows.edges)
    return {
        "policy": policy,
        "arguments": arguments,
        "num_documents": num_documents,
        "window": window,
        "num_rows": len(rows),
        "first": [list(piece) for piece in rows.pieces(0)],
        "xxh3_64": xxh3_64_hexdigest(b"".join(array.astype("<i8").tobytes() for array in arrays)),
    }


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['policy']['kind']}-{line['arguments']}")
def test_rows_are_what_they_were(line: dict[str, Any]) -> None:
    """The same description, documents and window give the same rows in the same order for ever, on every machine."""
    assert golden(line["policy"], line["arguments"], line["num_documents"], line["window"]) == line


def test_there_are_golden_rows_of_every_kind() -> None:
    """Every policy is held, and windows of more rows than a table shuffles."""
    assert {line["policy"]["kind"] for line in LINES} == {"best-fit", "fill", "concat", "no-packing"}
    assert any(line["num_rows"] > 65_536 for line in LINES)

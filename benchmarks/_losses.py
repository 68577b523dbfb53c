"""Why ours loses where it does: what a profile of the case showed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks._comparisons import Comparison

WHY: tuple[tuple[str, str, str], ...] = (
    (
        "checkpoint_state",
        r".*bytes;.*",
        "ours is 68 KiB at any number of ranks, of which 64 KiB are the seal that tells at load whether ranks "
        "disagreed; the other has no such check, and a small object for each rank, which grows with ranks and workers.",
    ),
    (
        "checkpoint_state",
        r".*save;.*",
        "well under a millisecond a checkpoint: ours encodes and seals the cursor, while the other copies a "
        "dictionary of counters; with workers it was sent one with every batch.",
    ),
    (
        "loader_overhead",
        r"item (0 us, 0|50 us, [012]) workers, (ledger of|4 accumulation).*",
        "in a profile of items that cost nothing the ledger is two fifths of ours: two records for each microbatch, "
        "each encoded, chained by a checksum and written by a call of its own, one before it is handed over and one at "
        "its commit, so that a killed process leaves no gap; with IDs also their packing at the least width. Without "
        "it ours takes less than a plain DataLoader.",
    ),
    (
        "packed_loader",
        r".*; (rows of one file|nanoGPT)",
        "these know no documents: a batch is one slice of the file for each row. Ours gives positions and borders, "
        "stops labels at documents, and proves each row by a digest. In a profile of 4 rows of 8,192, some 30 pieces, "
        "a fifth of the time is reading pieces, a fifth writing the arrays, a fifth asking for rows and pages ahead, a "
        "seventh the digest of the rows, a tenth the ledger; most of it does not grow with the tokens, and with "
        "workers ours is the faster.",
    ),
    (
        "checkpoint_digest",
        r".*",
        "a checksum reads bytes as they lie; the digest weighs each element by its place in the whole tensor, so that "
        "it is the same however the tensor is sharded. Where it matters the bytes come from storage, or from a device.",
    ),
    (
        "ledger_audit",
        r"digest 8;.*",
        "records of 8 samples each: decoding a record costs as much as the IDs of its samples. Folded, they do not.",
    ),
)
"""Question, a pattern of the case and the other, and the reason. The first that fits counts."""


def reason(loss: Comparison) -> str | None:
    """What explains it; None when nothing does yet."""
    for question, pattern, text in WHY:
        if question == loss.question and re.fullmatch(pattern, f"{loss.case}; {loss.peer}"):
            return text
    return None


def explained(losses: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    """Reason to the losses that it explains; what has none stands under an empty one."""
    found: dict[str, list[Comparison]] = {}
    for loss in losses:
        found.setdefault(reason(loss) or "", []).append(loss)
    return found

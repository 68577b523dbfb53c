"""What the demo found: both runs side by side, and a sentence for each thing that does not hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.cursor import Cursor
from resumable_data.packing import PackedTokens
from resumable_data.sources import open_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from resumable_data.audit import AuditReport

LOSS_TOLERANCE = 1e-5
"""Largest relative difference of an update's loss between the runs.

Between rounding and mistakes: gradients added in another order move a loss of this run by about 1e-7; one wrong row
in one update, or a fresh optimizer after a restart, by 1e-2 or more.
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run.

    Attributes:
        stages: Processes of each launch.
        losses: Update -> mean loss over its global batch; of an update done twice, the one that counts.
        ledger: The audit of its ledger.
        cursor: The cursor it ended at.
        proof: The audit of that cursor.
    """

    stages: Sequence[int]
    losses: dict[int, float]
    ledger: AuditReport
    cursor: Cursor
    proof: AuditReport

    @property
    def digest(self) -> str:
        """The coverage digest, 16 bytes in hex; of a cursor that has several, all of them."""
        return " ".join(f"{a:016x}{b:016x}" for a, b in (span.lanes for span in self.cursor.coverage)) or "none"


def read_outcome(out: Path, *, tokens: Path, stages: Sequence[int], losses: dict[int, float]) -> Outcome:
    """Audit what a run over the rows of these documents left in `out`."""
    cursor = Cursor.from_json((out / "cursor.json").read_bytes())
    packed = PackedTokens.from_description(open_tokens(tokens), cursor.recipe.order)
    return Outcome(
        stages=stages,
        losses=losses,
        ledger=audit_ledger(out / "ledger", packed=packed),
        cursor=cursor,
        proof=audit_cursor(cursor, packed=packed),
    )


def report(interrupted: Outcome, control: Outcome) -> list[str]:
    """Print both runs beside each other; returns a sentence for each thing that does not hold."""
    rows = [("", "interrupted", "control"), *_rows(interrupted, control)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, *cells in rows:
        print(f"{name.ljust(widths[0])}  {cells[0].rjust(widths[1])}  {cells[1].rjust(widths[2])}".rstrip())
    same = interrupted.digest == control.digest
    difference = largest_difference(interrupted.losses, control.losses)
    print(f"\ncoverage digests, 16 bytes each: {'equal' if same else 'DIFFERENT'}")
    print(f"  interrupted  {interrupted.digest}\n  control      {control.digest}")
    print(f"losses of all {len(control.losses)} updates: largest relative difference {difference:.1e}")
    print(f"  tolerance {LOSS_TOLERANCE:.0e}: another order of adding makes about 1e-07 here, one wrong row 1e-03")
    return failures(interrupted, control)


def _rows(interrupted: Outcome, control: Outcome) -> list[tuple[str, str, str]]:
    """The table: name, value of the interrupted run, value of the control."""
    runs = interrupted, control
    last = max(control.losses, default=0)
    cells = [
        ("processes", [" -> ".join(map(str, run.stages)) for run in runs]),
        ("updates", [str(run.ledger.updates) for run in runs]),
        ("rows trained on", [str(run.ledger.samples) for run in runs]),
        ("tokens of documents", [str(run.cursor.packed.tokens if run.cursor.packed else 0) for run in runs]),
        ("audit of the ledger", [run.ledger.verdict for run in runs]),
        ("audit of the cursor", [run.proof.verdict for run in runs]),
        ("replayed", [str(run.ledger.replayed) for run in runs]),
        ("omitted", [str(run.ledger.omitted) for run in runs]),
        ("discarded", [_discarded(run) for run in runs]),
        ("loss of the last update", [f"{run.losses.get(last, float('nan')):.7f}" for run in runs]),
    ]
    return [(name, first, second) for name, (first, second) in cells]


def _discarded(run: Outcome) -> str:
    """The total, and what each launch adds to it."""
    parts = [str(attempt.discarded) for attempt in run.ledger.attempts]
    return f"{' + '.join(parts)} = {run.ledger.discarded}" if len(parts) > 1 else str(run.ledger.discarded)


def largest_difference(losses: dict[int, float], control: dict[int, float]) -> float:
    """Largest relative difference of an update's loss; infinite where one is missing or no number."""
    if losses.keys() != control.keys() or not control:
        return float("inf")
    differences = [abs(losses[update] - control[update]) / abs(control[update]) for update in control]
    return float("inf") if any(map(math.isnan, differences)) else max(differences)


def failures(interrupted: Outcome, control: Outcome) -> list[str]:
    """A sentence for each thing that does not hold."""
    found = []
    for name, run in (("interrupted", interrupted), ("control", control)):
        for audit in (run.ledger, run.proof):
            if audit.verdict != "proven":
                found.append(f"the audit of the {name} run's {audit.subject} says {audit.verdict}:\n{audit.to_text()}")
        if run.ledger.replayed.high != 0 or run.ledger.omitted.high != 0:
            found.append(
                f"the {name} run replayed {run.ledger.replayed} and omitted {run.ledger.omitted} rows, not 0 and 0"
            )
        ranks = [attempt.num_replicas for attempt in run.ledger.attempts]
        if ranks != list(run.stages):
            found.append(f"the {name} run's ledger shows launches on {ranks} processes, not on {list(run.stages)}")
    if any(attempt.discarded.low == 0 for attempt in interrupted.ledger.attempts[:-1]):
        found.append("a kill discarded nothing, so it did not happen in mid-update")
    if interrupted.digest != control.digest:
        found.append("the coverage digests of both runs differ: they were not trained on the same rows")
    difference = largest_difference(interrupted.losses, control.losses)
    if not difference <= LOSS_TOLERANCE:
        found.append(f"the losses of both runs differ by {difference:.1e}, more than {LOSS_TOLERANCE:.0e}")
    return found

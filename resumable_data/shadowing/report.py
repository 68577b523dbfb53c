"""What an audit of shadow files says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.audit.report import NOTHING, Bounds
from resumable_data.findings import Finding
from resumable_data.logs.findings import CLEAN, UNPROVEN
from resumable_data.logs.report import format_finding

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA_VERSION = 1
_NUM_SHOWN = 20


class ShadowAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One launch.

    Attributes:
        attempt: Its number, from 1.
        num_replicas: Ranks.
        ranks: Those with a file, say ``"0-3"``.
        iterations: Epochs that it began.
        batches: Batches that all ranks were handed.
        rows: Their rows.
    """

    attempt: int
    num_replicas: int
    ranks: str
    iterations: int
    batches: int
    rows: int


class RestartedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch with at least one restart in it.

    Attributes:
        epoch: As the sampler numbers it, None where it does not.
        attempts: The launches that read of it.
        rows: Rows that count.
        by: ``"ids"``, or ``"contents"``.
        read_again: Rows that a later launch read again.
        replayed: How many of them were trained on twice.
        omitted: Samples that were never read.
        has_end: Whether the epoch was read to its end.
    """

    epoch: int | None
    attempts: tuple[int, ...]
    rows: int
    by: str
    read_again: int
    replayed: Bounds
    omitted: Bounds
    has_end: bool


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """What shadow files show. `to_json` and `to_text` show it.

    Attributes:
        subject: ``"shadow"``.
        path: The directory.
        verdict: ``"clean"``: no row was replayed or omitted. ``"violated"``: some were. ``"unproven"``: neither is
            certain.
        rows: Rows handed to the loops of all launches.
        replayed: Rows trained on twice, as bounds.
        omitted: Samples never read in epochs with a restart, as bounds.
        discarded: Rows read after the last marked checkpoint before a restart.
        attempts: All launches, oldest first.
        epochs: Epochs with a restart.
        findings: What was found, violations first.
    """

    subject: str = "shadow"
    path: str
    verdict: str
    rows: int
    replayed: Bounds = NOTHING
    omitted: Bounds = NOTHING
    discarded: int = 0
    attempts: tuple[ShadowAttempt, ...] = ()
    epochs: tuple[RestartedEpoch, ...] = ()
    findings: tuple[Finding, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 where the verdict is ``"clean"``, else 1."""
        return 0 if self.verdict == CLEAN else 1

    def to_json(self) -> bytes:
        """The report as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """The report for people."""
        lines = [f"{self.verdict.upper()}: {_explained(self)}", ""]
        counts = [
            ("shadow", self.path),
            ("launches", len(self.attempts)),
            ("rows", self.rows),
            ("replayed", self.replayed),
            ("omitted", self.omitted),
            ("discarded", self.discarded),
        ]
        lines += [f"  {name:<10} {value}" for name, value in counts]
        columns = ("launch", "ranks", "epochs", "batches", "rows")
        rows = [(one.attempt, one.num_replicas, one.iterations, one.batches, one.rows) for one in self.attempts]
        lines += ["", *_table(columns, rows)]
        if self.epochs:
            lines += [
                "",
                *_table(("epoch", "launches", "by", "read again", "replayed", "omitted"), map(_row, self.epochs)),
            ]
        for finding in self.findings[:_NUM_SHOWN]:
            lines += ["", *format_finding(finding)]
        left = len(self.findings) - _NUM_SHOWN
        return "\n".join(lines + [f"\nand {left} more findings"] * (left > 0))


def _explained(report: ShadowReport) -> str:
    if report.verdict == CLEAN:
        return "no row was replayed or omitted" if report.epochs else "no epoch has a restart in it"
    return "evidence is missing" if report.verdict == UNPROVEN else "rows were replayed or omitted at a restart"


def _row(one: RestartedEpoch) -> tuple[object, ...]:
    epoch = "?" if one.epoch is None else one.epoch
    return epoch, "+".join(map(str, one.attempts)), one.by, one.read_again, one.replayed, one.omitted


def _table(columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    table = [columns, *(tuple(map(str, row)) for row in rows)]
    left = len(table) - 1 - _NUM_SHOWN
    table = table[: _NUM_SHOWN + 1]
    widths = [max(len(row[column]) for row in table) for column in range(len(columns))]
    lines = ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return lines + [f"  and {left} more"] * (left > 0)

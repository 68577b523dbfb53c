"""What an audit of logs says."""

from __future__ import annotations

import msgspec

from resumable_data.findings import SEVERITIES, Finding
from resumable_data.logs.epochs import EpochCounts
from resumable_data.logs.findings import CLEAN, UNPROVEN
from resumable_data.logs.replays import Replay

SCHEMA_VERSION = 1
_NUM_EPOCHS_SHOWN = 20
_NUM_TIMES_SHOWN = 20


class IdsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What logs of sample IDs contain. `to_json` and `to_text` show it.

    Attributes:
        subject: ``"ids"``.
        files: The logs, in the order in which they were read.
        verdict: ``"clean"``: nothing differs from what was declared. ``"violated"``: something does. ``"unproven"``:
            nothing does, and a part of what was declared could not be checked.
        plan: The declared plan for people, empty where coverage alone was looked at.
        num_samples: N, as declared, or the largest ID and one.
        rows: IDs in the logs.
        replayed: Rows that are more than what is planned.
        omitted: Samples that are planned and missing, each as often as it is missing.
        remaining: Samples after the furthest one, of a run that was declared unfinished.
        histogram: Pairs (k, number of IDs that were seen k times); added up over epochs where the log names them.
        epochs: The same by epoch.
        replays: The first few rows that are more than planned, with where their IDs were seen first.
        replayed_by_rank: Pairs (rank, rows more than planned), for logs with ranks.
        replayed_by_file: Pairs (file, rows more than planned).
        findings: What was found, violations first.
    """

    subject: str = "ids"
    files: tuple[str, ...]
    verdict: str
    plan: str
    num_samples: int
    rows: int
    replayed: int
    omitted: int
    remaining: int
    histogram: tuple[tuple[int, int], ...]
    epochs: tuple[EpochCounts, ...]
    replays: tuple[Replay, ...]
    replayed_by_rank: tuple[tuple[int, int], ...]
    replayed_by_file: tuple[tuple[str, int], ...]
    findings: tuple[Finding, ...]
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
        lines += [f"  {name:<10} {value}" for name, value in _counts(self)]
        lines += ["", *_histogram(self)]
        if len(self.epochs) > 1:
            lines += ["", *_epochs(self.epochs)]
        for finding in self.findings:
            lines += ["", *format_finding(finding)]
        if self.replays:
            lines += ["", "  replayed, the first of them:", *(f"    {_replay(replay)}" for replay in self.replays)]
        return "\n".join(lines)


def _explained(report: IdsReport) -> str:
    if report.verdict == CLEAN:
        return "the log is what was planned" if report.plan else "every sample was read equally often"
    if report.verdict == UNPROVEN:
        return "nothing differs from the plan, and not all of it could be checked"
    return "the log is not what was planned"


def _counts(report: IdsReport) -> list[tuple[str, str]]:
    names = report.files[0] if len(report.files) == 1 else f"{len(report.files)} logs"
    counts = [
        ("log", names),
        ("plan", report.plan or "none: coverage alone"),
        ("samples", str(report.num_samples)),
        ("rows", str(report.rows)),
        ("replayed", str(report.replayed)),
        ("omitted", str(report.omitted)),
    ]
    if report.remaining:
        counts.append(("remaining", str(report.remaining)))
    return counts


def _histogram(report: IdsReport) -> list[str]:
    rows = [(f"{times}", f"{number}") for times, number in report.histogram[:_NUM_TIMES_SHOWN]]
    width = max(len("times seen"), *(len(times) for times, _ in rows))
    lines = [f"  {times.rjust(width)}  {number.rjust(12)}" for times, number in [("times seen", "IDs"), *rows]]
    left = len(report.histogram) - len(rows)
    return lines + [f"  and {left} more"] * (left > 0)


def _epochs(epochs: tuple[EpochCounts, ...]) -> list[str]:
    table = [("epoch", "rows", "replayed", "omitted")]
    for one in epochs[:_NUM_EPOCHS_SHOWN]:
        table.append((str(one.epoch), str(one.rows), str(one.replayed), str(one.omitted)))
    lines = ["  " + "  ".join(cell.rjust(12) for cell in row) for row in table]
    left = len(epochs) - _NUM_EPOCHS_SHOWN
    return lines + [f"  and {left} more epochs"] * (left > 0)


def _replay(replay: Replay) -> str:
    epoch = "" if replay.epoch is None else f" of epoch {replay.epoch}"
    first = "" if replay.first is None else f"first {replay.first}, again "
    return f"ID {replay.id}{epoch}: {first}{replay.again}"


def format_finding(finding: Finding) -> list[str]:
    """A finding for people."""
    times = f" ({finding.count})" if finding.count > 1 else ""
    return [
        f"{finding.code} {finding.severity}: {finding.title}{times}",
        f"  where     {finding.where}",
        f"  expected  {finding.expected}",
        f"  found     {finding.found}",
        f"  remedy    {finding.remedy}",
    ]


def by_severity(findings: list[Finding]) -> tuple[Finding, ...]:
    """Findings, violations first."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))

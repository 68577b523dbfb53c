"""From logs of sample IDs to what was replayed, omitted and out of order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.findings import Finding, format_ranks
from resumable_data.logs.epochs import EpochTallies
from resumable_data.logs.findings import judge_log, log_finding
from resumable_data.logs.ordering import OrderCheck
from resumable_data.logs.plan import LogPlan
from resumable_data.logs.reading import LogFile, Source
from resumable_data.logs.replays import ReplayLog
from resumable_data.logs.report import IdsReport, by_severity
from resumable_data.logs.rows import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resumable_data.logs.epochs import EpochCounts
    from resumable_data.logs.rows import Rows
    from resumable_data.order import Int64Array, Order

_NUM_IDS_SHOWN = 8
_NUM_OFFSETS = 4096


def audit_ids(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    num_samples: int | None = None,
    order: Order | None = None,
    num_replicas: int | None = None,
    drop_last: bool = False,
    epochs: int | None = None,
    first_epoch: int = 0,
    unfinished: bool = False,
    format: str | None = None,
    fields: Fields | None = None,
    rank_per_file: bool = False,
) -> IdsReport:
    """What logs of sample IDs, printed by any training script, contain.

    Without an order it says how often each ID was seen: `epochs` times each, or once in each epoch where the log names
    them. With one, it also says whether each rank read its samples in that order. Memory is one byte per sample, and
    per epoch where the log names them; the length of the logs does not matter. They are read a second time, up to
    where the first few repeated samples were seen first.

    Args:
        files: The logs, oldest first.
        num_samples: N: IDs are in [0, N). None for the order's, or up to the largest ID seen.
        order: The order of the samples, say `TorchShuffle` for what torch's DistributedSampler reads.
        num_replicas: dp ranks, of which rank r reads offsets r, r + num_replicas, ...; None where ranks changed, or do
            not matter.
        drop_last: As DistributedSampler's: whether what `num_replicas` does not divide is dropped, or filled up with
            repeats.
        epochs: Epochs of the logs.
        first_epoch: The first of them.
        unfinished: Whether the run has not ended: samples after the furthest one are not missed.
        format: ``"text"``, ``"csv"``, ``"tsv"``, ``"jsonl"``, ``"npy"`` or ``"parquet"``; by each file's name when
            None, and text where that says nothing.
        fields: Which columns or fields mean what.
        rank_per_file: Whether file k is the log of rank k.

    Raises:
        UsageError: Arguments have no meaning together, or pyarrow is missing.
        LogError: A file is no log of sample IDs.
    """
    paths = [Path(files)] if isinstance(files, (str, os.PathLike)) else [Path(path) for path in files]
    if not paths:
        raise UsageError("expected at least one log of sample IDs, got none")
    if order is not None and num_samples is None:
        num_samples = len(order)
    plan = LogPlan(
        num_samples=num_samples,
        order=order,
        num_replicas=num_replicas,
        drop_last=drop_last,
        epochs=epochs,
        first_epoch=first_epoch,
        unfinished=unfinished,
    )
    plan.check()
    sources = [
        LogFile(
            path,
            format=format,
            fields=fields or Fields(),
            num_samples=num_samples,
            rank=rank if rank_per_file else None,
        )
        for rank, path in enumerate(paths)
    ]
    return audit_sources(sources, plan)


def audit_sources(sources: Sequence[Source], plan: LogPlan) -> IdsReport:
    """As `audit_ids`, of anything that gives rows."""
    audit = _Audit(plan)
    for source in sources:
        for rows in source.read():
            audit.add(source.name, rows)
    return audit.report(sources)


class _Audit:
    """Everything that is counted in one pass."""

    def __init__(self, plan: LogPlan) -> None:
        self._plan = plan
        self._tallies = EpochTallies(plan)
        self._replays = ReplayLog()
        self._order = None if plan.order is None else OrderCheck(plan)
        self._ranks: set[int] = set()
        self._names_ranks: bool | None = None

    def add(self, name: str, rows: Rows) -> None:
        if self._names_ranks not in (None, rows.rank is not None):
            raise UsageError(f"{name}: either all logs must say the ranks or none; whose the others are is unknown")
        self._names_ranks = rows.rank is not None
        if rows.rank is not None:
            self._ranks.update(np.unique(rows.rank).tolist())
        self._tallies.add(name, rows, self._replays)
        if self._order is not None:
            self._order.add(name, rows)

    def report(self, sources: Sequence[Source]) -> IdsReport:
        epochs = self._tallies.counts()
        num_samples = self._tallies.num_samples
        missing_epochs = self._tallies.missing_epochs()
        planned = self._plan.planned_samples if self._plan.num_samples is not None else num_samples
        findings = [
            *self._counted(epochs, missing_epochs, planned),
            *self._ranks_and_epochs(missing_epochs),
            *self._ordered(),
            *self._notes(epochs, num_samples),
        ]
        return IdsReport(
            files=tuple(source.name for source in sources),
            verdict=judge_log(findings),
            plan=self._plan.describe(),
            num_samples=num_samples,
            rows=sum(one.rows for one in epochs),
            replayed=self._replays.num_rows,
            omitted=sum(one.omitted for one in epochs) + missing_epochs * planned,
            remaining=sum(one.remaining for one in epochs),
            histogram=_add_up(epochs),
            epochs=epochs,
            replays=self._replays.first_few(sources),
            replayed_by_rank=tuple(sorted(self._replays.by_rank.items())),
            replayed_by_file=tuple(self._replays.by_file.items()),
            findings=by_severity(findings),
        )

    def _counted(self, epochs: Sequence[EpochCounts], missing_epochs: int, planned: int) -> list[Finding]:
        found = []
        replays = self._replays
        if replays.num_rows:
            where = _join(
                [
                    ", ".join(replays.by_file),
                    f"rank {format_ranks(replays.by_rank)}" if replays.by_rank else "",
                    _steps(replays),
                ]
            )
            expected = "each ID once" if self._times() == 1 else f"each ID {self._times()} times"
            more = f"{replays.num_rows} more: {self._shown(replays.kept, replays.num_rows)}"
            found.append(
                log_finding(
                    "RD701", where, expected=expected, found=more, count=replays.num_rows, ranks=replays.by_rank
                )
            )
        omitted = sum(one.omitted for one in epochs)
        if omitted:
            fewer = f"{omitted} missing: {self._shown(self._tallies.omitted_ids(_NUM_OFFSETS), omitted)}"
            found.append(
                log_finding("RD702", "the whole log", expected=f"all of {planned} samples", found=fewer, count=omitted)
            )
        padding = sum(one.missing_padding for one in epochs)
        if padding:
            expected = f"{self._plan.rows_per_epoch} rows in an epoch, so that {self._plan.num_replicas} divides them"
            found.append(
                log_finding("RD707", "the ends of epochs", expected=expected, found=f"{padding} fewer", count=padding)
            )
        return found

    def _times(self) -> int:
        return 1 if self._tallies.names_epochs else self._plan.epochs or 1

    def _shown(self, parts: Sequence[tuple[int | None, Int64Array]], total: int) -> str:
        """The first IDs, and where in the epoch they are, where all are known."""
        ids = np.concatenate([ids for _, ids in parts])
        text = "IDs " + ", ".join(map(str, ids[:_NUM_IDS_SHOWN].tolist()))
        text += f" and {total - _NUM_IDS_SHOWN} more" * (total > _NUM_IDS_SHOWN)
        if self._plan.order is None or ids.size != total or self._times() > 1:
            return text
        places = []
        for epoch, some in parts:
            offsets = self._plan.order.offsets(self._plan.first_epoch if epoch is None else epoch, np.unique(some))
            places.append(f"offsets {format_ranks(offsets.tolist())}" + f" of epoch {epoch}" * (epoch is not None))
        return f"{text}; {', '.join(places[:_NUM_IDS_SHOWN])}"

    def _ranks_and_epochs(self, missing_epochs: int) -> list[Finding]:
        found = []
        num_ranks = self._plan.num_replicas
        if num_ranks is not None and self._names_ranks:
            wrong = [rank for rank in self._ranks if rank >= num_ranks]
            missing = set(range(num_ranks)) - self._ranks
            expected = f"ranks 0-{num_ranks - 1}"
            for code, ranks in (("RD704", wrong), ("RD708", missing)):
                if ranks:
                    text = f"{'no ' if code == 'RD708' else ''}rank {format_ranks(ranks)}"
                    found.append(
                        log_finding(code, "the whole log", expected=expected, found=text, count=len(ranks), ranks=ranks)
                    )
        expected = f"{self._plan.epochs or 'consecutive'} epochs from {self._plan.first_epoch}"
        epochs = format_ranks(self._tallies.epochs)
        unplanned = self._tallies.unplanned_epochs()
        if unplanned:
            text = f"epoch {format_ranks(unplanned)}"
            found.append(log_finding("RD705", "the whole log", expected=expected, found=text, count=len(unplanned)))
        if missing_epochs:
            text = f"epochs {epochs}: {missing_epochs} missing"
            found.append(log_finding("RD706", "the whole log", expected=expected, found=text, count=missing_epochs))
        return found

    def _ordered(self) -> list[Finding]:
        order = self._order
        if order is None:
            return []
        found = []
        if order.shown:
            first = order.shown[0]
            where = f"rank {first.rank}, {first.where}"
            least = "at least " * order.gave_up
            text = f"{first.found}; {least}{order.num_breaks} such places"
            found.append(
                log_finding(
                    "RD703", where, expected=str(first.expected), found=text, count=order.num_breaks, ranks=order.ranks
                )
            )
        expected = "each rank's IDs in order"
        if order.lacks_ranks:
            text = "a log that does not say which rank read what"
            found.append(log_finding("RD709", "the whole log", expected=expected, found=text))
        if order.lacks_number:
            text = "a log of several ranks, and no number of them"
            found.append(log_finding("RD712", "the whole log", expected=expected, found=text))
        return found

    def _notes(self, epochs: Sequence[EpochCounts], num_samples: int) -> list[Finding]:
        found = []
        if self._plan.num_samples is None:
            text = f"IDs up to {num_samples - 1}"
            found.append(log_finding("RD710", "the whole log", expected="the number of samples", found=text))
        remaining = sum(one.remaining for one in epochs)
        if remaining:
            text = f"{remaining} still to come"
            found.append(log_finding("RD711", "the end of the log", expected="whole epochs, or less", found=text))
        return found


def _add_up(epochs: Sequence[EpochCounts]) -> tuple[tuple[int, int], ...]:
    total: dict[int, int] = {}
    for one in epochs:
        for times, number in one.histogram:
            total[times] = total.get(times, 0) + number
    return tuple(sorted(total.items()))


def _steps(replays: ReplayLog) -> str:
    first, last = replays.first_step, replays.last_step
    return "" if first is None else f"step {first}" if first == last else f"steps {first}-{last}"


def _join(parts: Sequence[str]) -> str:
    return ", ".join(part for part in parts if part)

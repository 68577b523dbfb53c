"""Samples that a run declared unreadable: which of the records belong to the surviving history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.audit.findings import finding
from resumable_data.findings import MISSING_EVIDENCE
from resumable_data.order import ids_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.audit.branch import Branch
    from resumable_data.audit.report import Bounds
    from resumable_data.findings import Finding
    from resumable_data.ledger.columns import Deliveries, UnreadableRows

_SHOWN = 20


class UnreadableSample(msgspec.Struct, frozen=True):
    """A sample of the surviving history that could not be read.

    Attributes:
        position: Its place in the run's global sequence.
        id: Its ID.
        update: The update that it would have been in.
        attempt: The attempt that could not read it.
        rank: The data-parallel rank.
    """

    position: int
    id: int
    update: int
    attempt: int
    rank: int


def read_unreadable(
    rows: UnreadableRows, held: Deliveries, *, rank: int, branch: Branch
) -> tuple[list[UnreadableSample], UnreadableRows]:
    """The samples that one rank's file declares unreadable, and the records that no run writes.

    Args:
        rows: Unreadable rows that one file records, of the surviving history.
        held: The deliveries that they are said to be in, one for each.
        rank: The rank.
        branch: The attempt.
    """
    row, rest = np.divmod(rows.position - held.start, held.stride)
    fits = (rows.update == held.update) & (rows.index == held.index) & (rest == 0) & (row >= 0) & (row < held.count)
    is_sample = row < held.count - held.padding
    if branch.order is not None:
        checked = np.flatnonzero(fits & is_sample)
        fits[checked] &= ids_at(branch.order, rows.position[checked]) == rows.id[checked]
    good = rows.take(fits & is_sample)
    first = np.unique(good.position, return_index=True)[1]
    columns = (good.position[first], good.id[first], good.update[first])
    samples = [
        UnreadableSample(position, sample_id, update, branch.claim.attempt, rank)
        for position, sample_id, update in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return samples, rows.take(~fits)


def check_unreadable(samples: Sequence[UnreadableSample], count: Bounds, most: int | None) -> list[Finding]:
    """A note that names the samples, and a violation where they are more than `most`."""
    findings = []
    if samples:
        named = ", ".join(f"sample {one.id} (position {one.position})" for one in samples[:_SHOWN])
        named += f" and {len(samples) - _SHOWN} more" if len(samples) > _SHOWN else ""
        note = finding("RD209", "all attempts", expected="samples that can be read", found=named)
        findings.append(msgspec.structs.replace(note, count=len(samples)))
    if most is not None and (count.high is None or count.high > most):
        one = finding("RD502", "all attempts", expected=f"at most {most} samples", found=str(count))
        findings.append(one if count.low > most else msgspec.structs.replace(one, severity=MISSING_EVIDENCE))
    return findings

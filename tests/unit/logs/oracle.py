"""What an audit of logs must say, one sample at a time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.order import Order
    from tests.unit.logs.writing import Row


class Counts(NamedTuple):
    replayed: int
    omitted: int
    missing_padding: int
    histogram: dict[int, int]


def epoch_rows(order: Order, epoch: int, num_replicas: int, drop_last: bool) -> list[int]:
    """The IDs of an epoch in the order in which torch's DistributedSampler deals them out to ranks."""
    ids: list[int] = order.ids(epoch, np.arange(len(order), dtype=np.int64)).tolist()
    if drop_last:
        return ids[: len(ids) // num_replicas * num_replicas]
    num_rows = -(-len(ids) // num_replicas) * num_replicas
    return (ids * num_rows)[:num_rows]


def count(
    rows: Sequence[Row], order: Order, *, num_replicas: int, drop_last: bool, epochs: range, names_epochs: bool
) -> Counts:
    """Compare rows with the plan: by epoch where the log names them, else all together."""
    groups = [[epoch] for epoch in epochs] if names_epochs else [list(epochs)]
    replayed = omitted = padding = 0
    histogram: Counter[int] = Counter()
    for group in groups:
        planned = Counter(one for epoch in group for one in epoch_rows(order, epoch, num_replicas, drop_last))
        seen = Counter(row.id for row in rows if not names_epochs or row.epoch in group)
        is_in_log = not names_epochs or any(row.epoch in group for row in rows)
        for one in range(len(order)):
            replayed += max(0, seen[one] - planned[one])
            omitted += max(0, min(planned[one], len(group)) - seen[one])
            if is_in_log:
                padding += max(0, planned[one] - max(seen[one], len(group)))
                histogram[seen[one]] += 1
    return Counts(replayed, omitted, padding, dict(histogram))

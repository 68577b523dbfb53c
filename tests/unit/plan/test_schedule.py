"""Where updates begin and end."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from resumable_data.errors import UsageError
from resumable_data.plan import Schedule, UpdateSpan


def spans(**arguments: Any) -> list[tuple[int, int, int]]:
    found = []
    for span, count in islice(Schedule(**arguments).segments(0, 0), 100):
        found += [(span.start + i * span.num_samples, *span[1:]) for i in range(count)]
    return found


def test_the_four_tails() -> None:
    """Ten samples, updates of four, two epochs: what each tail does with the two that are left."""
    common = {"length": 10, "global_batch": 4, "epochs": 2}
    assert spans(tail="carry", **common) == [(start, 4, 0) for start in (0, 4, 8, 12, 16)]
    assert spans(tail="short", **common) == [(0, 4, 0), (4, 4, 0), (8, 2, 0), (10, 4, 0), (14, 4, 0), (18, 2, 0)]
    assert spans(tail="drop", **common) == [(0, 4, 0), (4, 4, 0), (10, 4, 0), (14, 4, 0)]
    assert spans(tail="pad", **common) == [(0, 4, 0), (4, 4, 0), (8, 2, 2), (10, 4, 0), (14, 4, 0), (18, 2, 2)]


def test_a_batch_larger_than_the_dataset() -> None:
    """A batch may span several epochs, or be padded with several rounds of one."""
    assert spans(length=3, global_batch=8, tail="carry", epochs=4) == [(0, 8, 0), (8, 4, 0)]
    assert spans(length=3, global_batch=8, tail="pad", epochs=2) == [(0, 3, 5), (3, 3, 5)]
    assert spans(length=3, global_batch=8, tail="short", epochs=2) == [(0, 3, 0), (3, 3, 0)]


def test_a_run_without_an_end() -> None:
    """Without `epochs` there is always a next update, and no number of those left."""
    for tail in ("carry", "short", "drop", "pad"):
        schedule = Schedule(length=10, global_batch=4, tail=tail)
        assert schedule.update_at(10**15, 8 if tail != "drop" else 0) is not None
        assert schedule.updates_left(0, 0) is None
        assert schedule.microbatches_left(0, 0, microbatch=1, num_replicas=2) is None


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    """(e, N) is stored as (e + 1, 0), dropped samples counted."""
    schedule = Schedule(length=10, global_batch=4, tail="drop")
    assert schedule.settle(2, 10) == (3, 0, 0)
    assert schedule.settle(2, 8) == (3, 0, 2)
    assert schedule.settle(2, 6) == (2, 6, 0)
    assert schedule.after(UpdateSpan(4, 4, 0)) == (1, 0, 2)
    assert Schedule(length=10, global_batch=4).after(UpdateSpan(8, 4, 0)) == (1, 2, 0)


def test_exact_far_out() -> None:
    """Places past 2^53 are exact."""
    length = 2**60 + 1
    schedule = Schedule(length=length, global_batch=7, epochs=3)
    assert schedule.updates_left(0, 0) == -(-3 * length // 7)
    span = schedule.update_at(1, length - 3)
    assert span == (2 * length - 3, 7, 0)
    assert span is not None
    assert schedule.after(span) == (2, 4, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"length": 0}, "length must be an integer of at least 1, got 0"),
        ({"global_batch": 0}, "global_batch must be"),
        ({"epochs": 0}, "epochs must be"),
        ({"epochs": 1.5}, "epochs must be"),
        ({"tail": "keep"}, "tail must be one of .*'keep'"),
        ({"tail": "drop", "global_batch": 11}, r"would drop all 10 samples.*Use tail=\"carry\""),
    ],
)
def test_arguments_outside_their_range_are_refused(arguments: dict[str, Any], says: str) -> None:
    """Each wrong argument is refused by name, a drop of everything with the way out."""
    with pytest.raises(UsageError, match=says):
        Schedule(**{"length": 10, "global_batch": 4, **arguments})

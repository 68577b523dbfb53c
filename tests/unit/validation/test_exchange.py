"""What processes' reports make together: each data-parallel rank once, whatever its peers are."""

from __future__ import annotations

import math
from typing import Any

import pytest

from resumable_data.errors import DisagreementError
from resumable_data.validation.exchange import ProcessReport, combine


def report(rank: int, **fields: Any) -> ProcessReport:
    plain: dict[str, Any] = {
        "rank": rank,
        "update": 5,
        "num_losses": 2,
        "samples": 3,
        "settings": 7,
        "loss": 0.0,
        "gradient_square": 1.0,
        "change_square": 4.0,
        "is_skipped": False,
        "num_counters": 2,
        "first_counter": 6,
        "last_counter": 6,
        "lane_0": 10 + rank,
        "lane_1": (1 << 64) - 1,
    }
    return ProcessReport(**plain | fields)


def test_shards_add_up_and_counters_span_all() -> None:
    """Squares, samples and digests are summed, step counters are the smallest and the largest of all."""
    together = combine(
        [
            report(0, loss=1.5, first_counter=5),
            report(1, loss=2.5, last_counter=9),
            report(2, loss=5.0, num_counters=0, first_counter=0, last_counter=99),
        ],
        num_replicas=3,
        reduction_size=3,
        is_mean=True,
    )
    assert together.loss == 3.0
    assert (together.gradient_norm, together.update_norm) == (math.sqrt(3), math.sqrt(12))
    assert (together.optimizer_steps, together.samples) == ((5, 9), 9)
    assert together.sample_digest == f"{33:016x}{(1 << 64) - 3:016x}"


@pytest.mark.parametrize(
    ("of_peers", "reduction_size", "is_mean", "expected"),
    [
        ([(0, 2.0), (1, 4.0)], 2, True, 3.0),  # dp 2
        ([(0, 2.0), (1, 4.0)], 2, False, 6.0),
        ([(0, 2.0), (0, 2.0), (1, 4.0), (1, 4.0)], 2, True, 3.0),  # dp 2, tp 2: copies
        ([(0, 1.0), (0, 3.0), (1, 2.0), (1, 6.0)], 4, True, 3.0),  # dp 2, cp 2: parts
        ([(0, 1.0), (0, 3.0), (1, 2.0), (1, 6.0)] * 2, 4, True, 3.0),  # dp 2, cp 2, tp 2
        ([(0, None), (0, 2.0), (1, None), (1, 4.0)], 2, True, 3.0),  # dp 2, pp 2: the last stage alone
        ([(0, math.inf), (1, -math.inf)], 2, True, math.nan),
    ],
)
def test_the_loss_is_the_mean_over_the_global_batch(
    of_peers: list[tuple[int, float | None]], reduction_size: int, is_mean: bool, expected: float
) -> None:
    """Tensor-parallel copies count once, context-parallel parts add up, pipeline stages without a loss are left out."""
    reports = [report(rank, loss=loss or 0.0, num_losses=int(loss is not None)) for rank, loss in of_peers]
    together = combine(reports, num_replicas=2, reduction_size=reduction_size, is_mean=is_mean)
    assert together.loss == pytest.approx(expected, nan_ok=True)
    assert together.samples == 6


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"update": 6}, "the index of the update"),
        ({"settings": 8}, "learning rates, loss scale and the scheduler's step"),
        ({"is_skipped": True}, "whether the optimizer skipped the step"),
        ({"num_losses": 0}, "expected losses from 1 process"),
        ({"rank": 0, "lane_0": 99}, "different samples"),
    ],
)
def test_processes_that_differ_are_told(fields: dict[str, Any], match: str) -> None:
    """Another update, learning rate, skip, loss or peer's data on one process is an error."""
    with pytest.raises(DisagreementError, match=match):
        combine([report(0), report(1)._replace(**fields)], num_replicas=2, reduction_size=2, is_mean=True)

"""Statistics that every good shuffle passes and known bad ones fail; each gives a p-value.

A family is a function ``ids(n, seed, epoch, offsets) -> ids`` over (k,) int64 arrays. Seeds are fixed, so a statistic
gives the same p-value on every run: p below `REJECTED` is a defect, not bad luck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from resumable_data.order import Int64Array

Family = Callable[[int, int, int, Int64Array], Int64Array]
REJECTED = 1e-6


def normal_p(z: float) -> float:
    """Two-sided p-value of a standard normal value."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_square_p(observed: npt.ArrayLike, expected: npt.ArrayLike, lost: int = 1) -> float:
    """Two-sided p-value of Pearson's statistic, by Wilson and Hilferty's cube root; expectations must be 5 or more."""
    seen = np.asarray(observed, dtype=np.float64).ravel()
    due = np.broadcast_to(np.asarray(expected, dtype=np.float64).ravel(), seen.shape)
    assert due.min() >= 5, "too few expected for a chi-square"
    freedom = seen.size - lost
    statistic = float(((seen - due) ** 2 / due).sum())
    spread = 2 / (9 * freedom)
    return normal_p(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def buckets(values: Int64Array, n: int, count: int) -> Int64Array:
    """Which of ``count`` equal ranges of ``[0, n)`` each value lies in."""
    return np.minimum((values * (count / n)).astype(np.int64), count - 1)


def independence_p(first: Int64Array, second: Int64Array, n: int, count: int = 16) -> float:
    """Whether two sequences of IDs, in ``count`` ranges each, are independent: a contingency table.

    Sequences that leave a range out are rejected outright.
    """
    cells = np.bincount(buckets(first, n, count) * count + buckets(second, n, count), minlength=count * count)
    table = cells.reshape(count, count)
    due = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    return chi_square_p(table, due, lost=2 * count - 1) if due.min() >= 5 else 0.0


def matches_p(counts: list[int]) -> float:
    """Whether counts of coincidences (fixed points, say) are Poisson(1)."""
    due = [math.exp(-1) / math.factorial(k) for k in range(3)]
    seen = np.bincount(np.minimum(counts, 3), minlength=4)
    return chi_square_p(seen, np.array([*due, 1 - sum(due)]) * len(counts))


def all_arrangements_p(permutations: Int64Array) -> float:
    """Whether each of the n! arrangements is equally likely; permutations: (num_keys, n)."""
    n = permutations.shape[1]
    rank = np.zeros(permutations.shape[0], dtype=np.int64)
    for i in range(n):
        smaller = (permutations[:, i + 1 :] < permutations[:, i : i + 1]).sum(axis=1)
        rank = rank * (n - i) + smaller
    num_ranks = math.factorial(n)
    return chi_square_p(np.bincount(rank, minlength=num_ranks), permutations.shape[0] / num_ranks)


def over_keys(family: Family, n: int, num_keys: int) -> Iterator[tuple[str, float]]:
    """Statistics of whole permutations over seeds, and between those of neighbouring seeds and epochs."""
    everything = np.arange(n, dtype=np.int64)
    fixed, same_epoch, same_seed, same_sum, correlations = [], [], [], [], []
    for seed in range(num_keys):
        ids = family(n, seed, 1, everything)
        next_epoch, next_seed = family(n, seed, 2, everything), family(n, seed + 1, 1, everything)
        fixed.append(int((ids == everything).sum()))
        same_epoch.append(int((ids == next_epoch).sum()))
        same_seed.append(int((ids == next_seed).sum()))
        same_sum.append(int((next_epoch == next_seed).sum()))  # (seed, epoch 2) and (seed + 1, epoch 1)
        pairs = ((ids, next_epoch), (ids, next_seed), (next_epoch, next_seed), (ids[1:], ids[:-1]))
        correlations.append([np.corrcoef(a, b)[0, 1] for a, b in pairs])
    yield f"fixed points, n={n}", matches_p(fixed)
    yield f"equal IDs in the next epoch, n={n}", matches_p(same_epoch)
    yield f"equal IDs under the next seed, n={n}", matches_p(same_seed)
    yield f"equal IDs at equal seed + epoch, n={n}", matches_p(same_sum)
    z = np.array(correlations) * math.sqrt(n)  # (num_keys, 4), each about standard normal
    for name, column in zip(("epochs", "seeds", "seed + epoch", "neighbours"), z.T, strict=True):
        yield f"correlation of {name}, n={n}", normal_p(float(column.sum()) / math.sqrt(num_keys))
        spread = math.sqrt(2 / (9 * num_keys))
        square = float((column**2).mean())
        yield f"correlation of {name}, size, n={n}", normal_p((square ** (1 / 3) - 1 + spread**2) / spread)


def within_epoch(
    family: Family, n: int, num_samples: int, start: int = 0, seed: int = 1
) -> Iterator[tuple[str, float]]:
    """Statistics of ``num_samples`` consecutive offsets: differences, strides, windows, low bits, other keys."""
    offsets = np.arange(start, start + num_samples, dtype=np.int64)
    ids = family(n, seed, 0, offsets)
    first = (ids[1:] - ids[:-1]) % n
    second = (first[1:] - first[:-1]) % n
    where = f"n={n}, from {start}"
    yield f"differences, {where}", chi_square_p(np.bincount(buckets(first, n, 256), minlength=256), first.size / 256)
    yield (
        f"differences of differences, {where}",
        chi_square_p(np.bincount(buckets(second, n, 256), minlength=256), second.size / 256),
    )
    for stride in (1, 2, 3, 4, 7, 8, 16, 64, 255, 256, 257, 1024, 4096, 16384):
        if stride <= num_samples // 4:
            yield f"stride {stride}, {where}", independence_p(ids[:-stride], ids[stride:], n)
            low = (ids[:-stride] & 7) * 8 + (ids[stride:] & 7)
            yield (
                f"low bits at stride {stride}, {where}",
                chi_square_p(np.bincount(low, minlength=64), low.size / 64, 1),
            )
    for name, values, of in (("ranges", ids, n), ("low bits", ids & 63, 64)):
        windows = (
            buckets(values[: num_samples // 512 * 512], of, 64).reshape(-1, 512)
            + 64 * np.arange(num_samples // 512)[:, None]
        )
        counts = np.bincount(windows.ravel(), minlength=64 * windows.shape[0])
        yield f"windows of 512 by {name}, {where}", chi_square_p(counts, 8, lost=windows.shape[0])
    yield f"next epoch, {where}", independence_p(ids, family(n, seed, 1, offsets), n)
    yield f"next seed, {where}", independence_p(ids, family(n, seed + 1, 0, offsets), n)


def odd_share(family: Family, n: int, num_seeds: int) -> Iterator[tuple[str, float]]:
    """Deviation of the share of odd IDs per batch of 2^k over the ideal one; a ratio, not a p-value."""
    everything = np.arange(n, dtype=np.int64)
    parity = np.stack([family(n, seed, 0, everything) & 1 for seed in range(num_seeds)])  # (num_seeds, n)
    share = (n // 2) / n
    for k in range(4, n.bit_length() - 6):
        size = 1 << k
        batches = parity[:, : n // size * size].reshape(-1, size)
        ideal = math.sqrt(size * share * (1 - share) * (n - size) / (n - 1))
        seen = math.sqrt(float(((batches.sum(axis=1) - size * share) ** 2).mean()))
        yield f"odd share per {size}, n={n}", seen / ideal


def worst(statistics: Iterator[tuple[str, float]], count: int | None = None) -> tuple[str, float]:
    """The statistic with the smallest p-value."""
    return min(islice(statistics, count), key=lambda named: named[1])

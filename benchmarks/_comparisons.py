"""All comparisons of the suite in one form: how many times as long, or as much, another takes as ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Results = Mapping[str, Mapping[str, Any]]
"""Question to what is stored of it."""
TOLERANCE = 1.10
PLAIN, STATEFUL = "plain DataLoader", "torchdata StatefulDataLoader"


class Comparison(NamedTuple):
    """Ours beside another, of one case.

    Attributes:
        question: The module.
        case: What was measured.
        peer: The other.
        times_ours: Its cost over ours; below 1 ours loses.
    """

    question: str
    case: str
    peer: str
    times_ours: float

    @property
    def is_loss(self) -> bool:
        """Whether ours costs over 10 % more."""
        return self.times_ours < 1 / TOLERANCE


def comparisons(results: Results) -> Iterator[Comparison]:
    """All that were measured."""
    for question, read in _READERS.items():
        if question in results:
            for case, peer, times_ours in read(results[question]):
                yield Comparison(question, case, peer, times_ours)


def losses(results: Results) -> list[Comparison]:
    """Those that ours loses by more than a tenth."""
    return [one for one in comparisons(results) if one.is_loss]


_Found = Iterator[tuple[str, str, float]]


def _times_ours(results: Mapping[str, Any]) -> _Found:
    for case, loaders in results.items():
        for name, entry in loaders.items():
            for key, value in entry.items():
                if key.startswith("times_ours") and value != 1.0:
                    yield case + key.removeprefix("times_ours").replace("_", ", "), name, value


def _remap(results: Mapping[str, Any]) -> _Found:
    return _times_ours(results["moves"])


def _loader(results: Mapping[str, Any]) -> _Found:
    peers = {"plain": PLAIN, "StatefulDataLoader": STATEFUL}
    for case, loaders in results.items():
        for ours, entry in loaders.items():
            if ours in peers:
                continue
            for key, peer in peers.items():
                if key in loaders:
                    yield f"{case}, {ours.removeprefix('ours, ')}", peer, loaders[key]["ratio"] / entry["ratio"]


def _packed(results: Mapping[str, Any]) -> _Found:
    for case, loaders in results.items():
        for name, entry in loaders.items():
            if name not in ("ours", "memcpy") and "ratio" in entry:
                yield case, name, entry["ratio"]


def _gather(results: Mapping[str, Any]) -> _Found:
    for name, entry in results["others"].items():
        if name != "gather" and "ratio" in entry:
            yield "one batch, no loader", name, entry["ratio"]


def _order(results: Mapping[str, Any]) -> _Found:
    for case, entry in results["throughput"].items():
        if not case.startswith("torch"):
            yield case, "torch.randperm(1e7).tolist()", 1 / entry["ratio"]


def _audit(results: Mapping[str, Any]) -> _Found:
    speed = results["speed"]
    for case, entry in speed.items():
        if "bytes_per_id" in entry:
            yield case, "sorting all IDs", speed["obvious audit"]["ratio"] / entry["ratio"]


def _digest(results: Mapping[str, Any]) -> _Found:
    speed = results["speed"]
    for ours in ("float32, rows of 4096", "bfloat16, 1-D"):
        for peer in ("file read", "xxh3_64", "zlib.crc32", "sha256"):
            yield ours, peer, speed[peer]["ratio"] / speed[ours]["ratio"]


def _end_to_end(results: Mapping[str, Any]) -> _Found:
    for case, entry in results.items():
        yield case, "DistributedSampler and DataLoader", 1 / entry["ours"]["ratio"]


_READERS = {
    "remap_cost": _remap,
    "first_batch": _times_ours,
    "order_speed": _order,
    "loader_overhead": _loader,
    "packed_loader": _packed,
    "packed_gather": _gather,
    "checkpoint_state": _times_ours,
    "ledger_audit": _audit,
    "checkpoint_digest": _digest,
    "end_to_end": _end_to_end,
}

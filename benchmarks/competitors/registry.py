"""All loaders that are compared, in the order of tables."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from benchmarks.competitors._interface import Competitor
from benchmarks.competitors.accelerate_skip import SkipFirstBatches
from benchmarks.competitors.grain_elastic import Elastic
from benchmarks.competitors.litdata_streaming import LitData
from benchmarks.competitors.olmo_core_loader import OlmoCore
from benchmarks.competitors.ours import Ours
from benchmarks.competitors.streaming_mds import Streaming
from benchmarks.competitors.torch_sampler import Restarted, Skipped
from benchmarks.competitors.torchdata_stateful import StatefulLoader

COMPETITORS: tuple[Competitor, ...] = (
    Ours(),
    Restarted(),
    Skipped(),
    StatefulLoader(),
    SkipFirstBatches(),
    Streaming(),
    Elastic(),
    OlmoCore(),
    LitData(),
)


def by_name(name: str) -> Competitor:
    """The loader of that name."""
    return {competitor.name: competitor for competitor in COMPETITORS}[name]


def installed_version(competitor: Competitor) -> str | None:
    """The release that is installed; None where it is not. Of torch's and ours, that of their own package."""
    package = competitor.package or ("resumable-data" if competitor.name == "resumable_data" else "torch")
    try:
        return version(package)
    except PackageNotFoundError:
        return None if competitor.package else "from the source tree"

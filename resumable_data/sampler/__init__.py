"""Order, plan and cursor brought together: what one rank reads, has committed, and puts into a checkpoint."""

from resumable_data.sampler.batch_sampler import ResumableSampler
from resumable_data.sampler.padding import repeated_positions
from resumable_data.sampler.progress import Progress
from resumable_data.sampler.rank_rows import MicrobatchRows, RankLayout, RankRows
from resumable_data.sampler.targets import LossWeight, TargetTokens
from resumable_data.sampler.topology import Topology, resolve_topology

__all__ = [
    "LossWeight",
    "MicrobatchRows",
    "Progress",
    "RankLayout",
    "RankRows",
    "ResumableSampler",
    "TargetTokens",
    "Topology",
    "repeated_positions",
    "resolve_topology",
]

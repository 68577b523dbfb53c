"""Order, plan and cursor brought together: what one rank reads, and what it has committed."""

from resumable_data.sampler.padding import repeated_positions
from resumable_data.sampler.progress import Progress
from resumable_data.sampler.rank_rows import MicrobatchRows, RankLayout, RankRows
from resumable_data.sampler.targets import LossWeight, TargetTokens

__all__ = ["LossWeight", "MicrobatchRows", "Progress", "RankLayout", "RankRows", "TargetTokens", "repeated_positions"]

"""For training loops that nobody rewrites: torch's DistributedSampler and DataLoader, counted and resumable."""

from resumable_data.tracking.distributed_sampler import DistributedSampler
from resumable_data.tracking.tracked_loader import TrackedLoader, track

__all__ = ["DistributedSampler", "TrackedLoader", "track"]

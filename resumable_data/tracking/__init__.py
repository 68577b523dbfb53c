"""For training loops that nobody rewrites: torch's DistributedSampler and DataLoader, counted and resumable."""

from resumable_data.tracking.dataloaders import track
from resumable_data.tracking.distributed_sampler import DistributedSampler
from resumable_data.tracking.tracked_loader import TrackedLoader

__all__ = ["DistributedSampler", "TrackedLoader", "track"]

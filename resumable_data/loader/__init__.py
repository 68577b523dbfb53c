"""The loader: a torch DataLoader in the global order, with commits, a ledger and state in the checkpoint."""

from resumable_data.loader.evaluation import EvaluationLoader, evaluation_loader
from resumable_data.loader.loader import ResumableLoader
from resumable_data.loader.microbatch import Microbatch
from resumable_data.loader.updates import Update

__all__ = ["EvaluationLoader", "Microbatch", "ResumableLoader", "Update", "evaluation_loader"]

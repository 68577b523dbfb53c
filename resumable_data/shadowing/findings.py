"""What an audit of shadow files can find."""

from __future__ import annotations

from functools import partial

from resumable_data.findings import MISSING_EVIDENCE, NOTE, VIOLATION, Finding, Kind

_RESUME = (
    "resumable_data.ResumableLoader, or resumable_data.track over a resumable_data.DistributedSampler, goes on at the "
    "exact sample, on any number of ranks."
)

KINDS = {
    "RD721": Kind(
        VIOLATION, "rows were read again after a restart, and not as going back to a checkpoint does", _RESUME
    ),
    "RD722": Kind(
        MISSING_EVIDENCE,
        "rows were read again after a restart, as going back to a checkpoint does: trained on twice, or lost before",
        "Compare with the batch at which the checkpoint was saved, or call mark_saved() after each save.",
    ),
    "RD723": Kind(VIOLATION, "samples of an epoch were never read, and a restart was in it", _RESUME),
    "RD724": Kind(
        MISSING_EVIDENCE,
        "samples were not seen that the loader may have dropped, left out on purpose, or changed",
        "Try without drop_last and augmentation, and let two epochs run through to compare with.",
    ),
    "RD725": Kind(MISSING_EVIDENCE, "a rank has no file", "Shadow the loader on all data-parallel ranks."),
    "RD726": Kind(MISSING_EVIDENCE, "shadowing stopped", "The reason is in the file; what came after it is not."),
    "RD727": Kind(
        MISSING_EVIDENCE,
        "what was never read cannot be known",
        "Let an epoch run through without a restart, so that there is something to compare with.",
    ),
    "RD728": Kind(
        MISSING_EVIDENCE,
        "an epoch with a restart has not ended, so what is never read in it is not known yet",
        "Ask again when it has.",
    ),
    "RD729": Kind(
        MISSING_EVIDENCE,
        "an epoch is known by IDs in part and by contents in part",
        "Shadow the same loader throughout.",
    ),
    "RD730": Kind(NOTE, "a torn tail was dropped", "None needed: it is what a kill leaves."),
    "RD731": Kind(NOTE, "an entry that is no shadow file", "Move it out of the directory."),
    "RD732": Kind(
        NOTE,
        "rows repeat within one launch, so that repeats after a restart may be meant too",
        "Samplers with replacement repeat IDs, and datasets may have rows with equal contents.",
    ),
    "RD733": Kind(NOTE, "no epoch has a restart in it", "Stop the job in mid-epoch, start it again, and ask again."),
}

shadow_finding = partial(Finding.of, KINDS)
"""A finding about shadow files, by its code."""

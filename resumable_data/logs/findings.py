"""What an audit of somebody's logs can find."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from resumable_data.findings import MISSING_EVIDENCE, NOTE, VIOLATION, Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

CLEAN = "clean"
VIOLATED = "violated"
UNPROVEN = "unproven"

_RESUME = (
    "Resume from the number of samples that were committed, not from a rank's number of batches: "
    "resumable_data.ResumableLoader, or resumable_data.track over a resumable_data.DistributedSampler, do."
)
_DECLARE = "Check the declared plan (samples, seed, order, ranks, epochs) against the script that wrote the log."

KINDS = {
    "RD701": Kind(VIOLATION, "samples were read more often than planned", _RESUME),
    "RD702": Kind(VIOLATION, "planned samples were never read, or not often enough", _RESUME),
    "RD703": Kind(VIOLATION, "samples were read in another order than planned", _DECLARE),
    "RD704": Kind(VIOLATION, "a rank that the plan does not have", _DECLARE),
    "RD705": Kind(VIOLATION, "an epoch that the plan does not have", _DECLARE),
    "RD706": Kind(VIOLATION, "a planned epoch is not in the log", "Add the logs of the missing epochs."),
    "RD707": Kind(
        VIOLATION,
        "rows that fill up the last ranks were never read",
        "Ranks then have unequal numbers of rows. Say drop_last if the run dropped its remainder.",
    ),
    "RD708": Kind(MISSING_EVIDENCE, "a planned rank is not in the log", "Add the logs of all ranks."),
    "RD709": Kind(
        MISSING_EVIDENCE,
        "the order could not be checked",
        "Log the rank beside the IDs, or give one log per rank with --rank-per-file, and say --num-replicas.",
    ),
    "RD710": Kind(
        NOTE,
        "the number of samples was not given, so that samples after the last one seen cannot be missed",
        "Say it with --samples.",
    ),
    "RD711": Kind(NOTE, "the log ends before its last epoch does", "None needed if the run has not ended."),
    "RD712": Kind(
        NOTE,
        "the order of several ranks was not checked, as their number was not declared",
        "Say it with --num-replicas, for a log in which it did not change.",
    ),
}

log_finding = partial(Finding.of, KINDS)
"""A finding about a log, by its code."""


def judge_log(findings: Iterable[Finding]) -> str:
    """The verdict that findings lead to."""
    severities = {finding.severity for finding in findings}
    if VIOLATION in severities:
        return VIOLATED
    return UNPROVEN if MISSING_EVIDENCE in severities else CLEAN

"""What an audit can find: one table of codes, and findings gathered over records and ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from resumable_data.findings import MISSING_EVIDENCE, NOTE, VIOLATION, Finding, Kind, format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

_RESTORE = "Restore the file from a copy, or go on from a checkpoint whose history is proven."
_ROLL_BACK = (
    "Go on from a checkpoint made before this update, or accept the counts with --max-replayed or --max-omitted."
)
_SAME_ORDER = (
    "Make sure that dataset and order are those of the recipe (seed, epoch, name, length), and that nothing between "
    "the loader and the dataset maps IDs."
)
_EDITED = "Files of this ledger were edited, mixed with another run's, or written by two jobs at once: find out which."
_MEND_PACKING = (
    "The packing policy lost or repeated tokens, or files of this ledger were edited: find out which, and go on from a "
    "checkpoint made before."
)

KINDS = {
    "RD101": Kind(NOTE, "an entry that no ledger has", "Move it out of the ledger's directory."),
    "RD102": Kind(MISSING_EVIDENCE, "an attempt has rank files but no claim", _RESTORE),
    "RD103": Kind(MISSING_EVIDENCE, "an attempt's directory is missing", _RESTORE),
    "RD104": Kind(MISSING_EVIDENCE, "the attempt that this one goes on from is missing", _RESTORE),
    "RD105": Kind(MISSING_EVIDENCE, "a rank's file is missing", _RESTORE),
    "RD106": Kind(MISSING_EVIDENCE, "a rank's file ends too early", _RESTORE),
    "RD107": Kind(NOTE, "a torn tail was dropped", "None needed: it is what a kill leaves."),
    "RD108": Kind(
        MISSING_EVIDENCE, "the order cannot be rebuilt, so IDs were not checked", "Use an order of this package."
    ),
    "RD109": Kind(
        MISSING_EVIDENCE,
        "the ledger begins in mid-run",
        "Audit the ledger of the beginning too, or call check_agreement() before each save so that the cursor's own "
        "digest covers it.",
    ),
    "RD110": Kind(VIOLATION, "a file of another rank, attempt or run", _EDITED),
    "RD111": Kind(VIOLATION, "an attempt of another run", "Give each run a ledger of its own."),
    "RD112": Kind(
        MISSING_EVIDENCE,
        "the run was taken over from another loader, and what came before was declared and not recorded",
        "To have what came after judged alone, audit with --since-take-over (since_take_over=True).",
    ),
    "RD113": Kind(
        MISSING_EVIDENCE,
        "digests are keyed, and no key was given, so IDs were not checked",
        "Give the secret that the ledger was made with: --key, or key=.",
    ),
    "RD114": Kind(MISSING_EVIDENCE, "a damaged file was read up to the damage", _RESTORE),
    "RD115": Kind(
        NOTE,
        "a file is shorter than when a newer attempt was claimed",
        "None needed where it is what a loss of power leaves; what is missing of the history is reported apart.",
    ),
    "RD116": Kind(VIOLATION, "a file was rewritten after a newer attempt was claimed", _EDITED),
    "RD117": Kind(
        NOTE,
        "an older attempt wrote on after a newer one was claimed: the history forks there",
        "Two jobs ran at once. What the older one delivered from there on is discarded, with its checkpoints, but for "
        "what a later attempt went on from.",
    ),
    "RD118": Kind(
        MISSING_EVIDENCE,
        "an update goes on from a part that no attempt of the surviving history delivered",
        "Give the ledger to every launch; go on from a checkpoint at an update's border to have what follows proven.",
    ),
    "RD201": Kind(VIOLATION, "a microbatch was never delivered", _ROLL_BACK),
    "RD202": Kind(VIOLATION, "a microbatch was delivered twice", _ROLL_BACK),
    "RD203": Kind(VIOLATION, "a microbatch holds rows of another share", _ROLL_BACK),
    "RD204": Kind(VIOLATION, "the fetched IDs are not those of the order", _SAME_ORDER),
    "RD205": Kind(VIOLATION, "deliveries are out of order", _EDITED),
    "RD206": Kind(VIOLATION, "an impossible number of filler rows", _EDITED),
    "RD207": Kind(VIOLATION, "a record that no run can write", _EDITED),
    "RD208": Kind(VIOLATION, "an unreadable sample that its microbatch does not hold", _EDITED),
    "RD209": Kind(
        NOTE,
        "samples that could not be read were replaced by filler, as the run declared",
        "Mend them in the dataset; this run was not trained on them.",
    ),
    "RD210": Kind(VIOLATION, "a peer was handed other samples than its rank", _EDITED),
    "RD211": Kind(
        VIOLATION,
        "planned rows do not hold every token of their documents once",
        "The packing policy loses or repeats tokens: hold it to PackedRows.check, and mend it.",
    ),
    "RD212": Kind(VIOLATION, "committed rows hold a token twice in an epoch, by their recorded pieces", _MEND_PACKING),
    "RD213": Kind(
        VIOLATION, "no committed row of an epoch holds a token that one should, by their recorded pieces", _MEND_PACKING
    ),
    "RD214": Kind(VIOLATION, "a recorded piece is of tokens that its row cannot hold", _MEND_PACKING),
    "RD215": Kind(VIOLATION, "the recorded pieces are not those of the row's ID", _EDITED),
    "RD216": Kind(
        NOTE,
        "a packing policy left tokens out by a rule of its own, so tokens were not counted by recorded pieces",
        "None needed: planned rows were held against the documents, and recorded pieces against planned rows.",
    ),
    "RD301": Kind(VIOLATION, "commits are not one after another", _EDITED),
    "RD302": Kind(VIOLATION, "ranks disagree on whether an update was applied", _EDITED),
    "RD303": Kind(VIOLATION, "a rewind reaches behind a commit", _EDITED),
    "RD304": Kind(VIOLATION, "updates were committed after the end of the run", _EDITED),
    "RD305": Kind(VIOLATION, "ranks disagree on where an epoch was left early", _EDITED),
    "RD306": Kind(VIOLATION, "a part of an update was taken over that was not delivered so", _EDITED),
    "RD401": Kind(VIOLATION, "a start cursor does not follow from the attempts before it", _EDITED),
    "RD402": Kind(
        VIOLATION,
        "the recipe changed without a declared migration",
        "Load the cursor with load_state_dict(state, allow=...), which records the change.",
    ),
    "RD403": Kind(VIOLATION, "a cursor's coverage digest is not that of the order", _SAME_ORDER),
    "RD404": Kind(VIOLATION, "a cursor's numbers contradict each other", _EDITED),
    "RD405": Kind(
        MISSING_EVIDENCE,
        "the coverage digest does not cover all that was committed",
        "Call loader.check_agreement() on all ranks right before saving.",
    ),
    "RD406": Kind(
        MISSING_EVIDENCE,
        "samples were dropped at places that the cursor alone does not tell",
        "Without drop_last nothing is dropped, and the digest proves everything.",
    ),
    "RD407": Kind(
        NOTE,
        "a restart went on from an older checkpoint than the newest complete one",
        "None needed where it was meant, say after a loss that diverged; what came after that checkpoint is discarded.",
    ),
    "RD408": Kind(
        VIOLATION,
        "checkpoints of several runs",
        "Give the checkpoints of one run; audit others apart.",
    ),
    "RD409": Kind(
        VIOLATION,
        "checkpoints of one run that do not lie in one history",
        "Two jobs went on with the run apart from each other, or a cursor was edited: give checkpoints of one of them.",
    ),
    "RD410": Kind(
        NOTE,
        "an older attempt's checkpoint is further on than a newer attempt's: the run went on from before it",
        "None needed: both delivered the samples of the order. Where the older attempt was given up, leave its "
        "checkpoint out.",
    ),
    "RD411": Kind(
        MISSING_EVIDENCE,
        "a checkpoint has no cursor where the others have one",
        "Save the loader's state under one key; give only checkpoints that have it.",
    ),
    "RD501": Kind(
        VIOLATION, "more was discarded than allowed", "Save checkpoints more often, or raise --max-discarded."
    ),
    "RD502": Kind(
        VIOLATION,
        "more samples could not be read than allowed",
        "Mend the dataset and go on from a checkpoint made before, or raise --max-unreadable.",
    ),
}

finding = partial(Finding.of, KINDS)
"""A finding of an audit, by its code."""

_PLURALS = {"update": "updates", "batch": "batches"}


class Issue(NamedTuple):
    """What is wrong with one rank's records, before it is gathered over ranks."""

    code: str
    rank: int
    expected: str
    found: str
    times: int = 1
    first_update: int | None = None
    last_update: int | None = None


class _Group(msgspec.Struct):
    first: Issue
    ranks: list[int] = msgspec.field(default_factory=list)
    times: int = 0
    updates: list[int] = msgspec.field(default_factory=list)


def gather_issues(attempt: int, issues: Iterable[Issue], word: str = "update") -> list[Finding]:
    """One finding per code for all ranks of an attempt, in the order of codes; `word` is what is counted."""
    groups: dict[str, _Group] = {}
    for issue in issues:
        group = groups.setdefault(issue.code, _Group(issue))
        group.ranks.append(issue.rank)
        group.times += issue.times
        group.updates += [u for u in (issue.first_update, issue.last_update) if u is not None]
    return [_gathered(attempt, code, group, word) for code, group in sorted(groups.items())]


def _gathered(attempt: int, code: str, group: _Group, word: str) -> Finding:
    first, last = (min(group.updates), max(group.updates)) if group.updates else (None, None)
    where = f"attempt {attempt}, rank {format_ranks(group.ranks)}"
    if first is not None:
        where += f", {word} {first}" if first == last else f", {_PLURALS[word]} {first}-{last}"
    return finding(
        code,
        where,
        expected=group.first.expected,
        found=group.first.found,
        attempt=attempt,
        ranks=group.ranks,
        count=group.times,
        first_update=first,
        last_update=last,
    )

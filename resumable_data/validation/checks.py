"""The checks of a rehearsal by name: what each asks and prevents, and what came of one. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from resumable_data.findings import PlainFinding

PASSED = "passed"
FAILED = "failed"
NOT_RUN = "not run"
WARM_START = "warm start"
UNPROVEN = "unproven"

STAGES = ("files", "load", "update", "window", "untouched")


class CheckKind(NamedTuple):
    """A check by its name.

    Attributes:
        stage: The stage of a rehearsal that makes it; what fails there stops the later ones.
        asks: What it asks.
        prevents: The failure of a run that it prevents.
        is_required: Whether nothing is promoted without it.
    """

    stage: str
    asks: str
    prevents: str
    is_required: bool = False


CHECKS = {
    "files": CheckKind(
        "files",
        "Are all files there, whole, and of one save?",
        "A shard that is missing, cut, changed or left over from another save is loaded without a word.",
    ),
    "manifest": CheckKind(
        "files",
        "Is it known what the program was made of, and on which ranks?",
        "Nobody can say what the move was meant to keep.",
    ),
    "migration": CheckKind(
        "files",
        "Is the migration one of this checkpoint?",
        "What was looked at and allowed was the move of another checkpoint.",
    ),
    "build": CheckKind(
        "load",
        "Does build() make the job's parts, with a ledger of its own?",
        "A trial writes into the ledger of the run.",
    ),
    "load": CheckKind(
        "load",
        "Does the checkpoint load on these ranks?",
        "Another optimizer, model, seed or order of samples is found in production.",
    ),
    "state": CheckKind(
        "load",
        "Does the program hold what the checkpoint holds, all of it?",
        "Moments, step counters, settings, scale, ties or random states are lost, swapped or reset.",
        is_required=True,
    ),
    "unchanged": CheckKind(
        "load",
        "Do evaluation, forward and backward leave the state as it is?",
        "A schedule that counts microbatches, or evaluation that trains.",
    ),
    "evaluation": CheckKind(
        "load",
        "Does evaluation of the same examples give the same twice?",
        "Dropout stays on in evaluation, and quality seems to have changed.",
    ),
    "logits": CheckKind(
        "load",
        "Are the logits those that were stored with the checkpoint?",
        "Weights are laid out otherwise than they say, kernels differ, or the examples are others.",
    ),
    "batch": CheckKind(
        "update",
        "Are global batch and ranks what was declared, and the data-parallel size that of the model?",
        "The launcher halves the batch, or tensor-parallel ranks are counted as data-parallel.",
        is_required=True,
    ),
    "samples": CheckKind(
        "update",
        "Are the samples of the first update those that the order has at the checkpoint's cursor?",
        "Samples are read again, or never.",
    ),
    "step": CheckKind(
        "update",
        "Does one update move the parameters, by a finite amount?",
        "Gradients do not reach the optimizer, or are not finite.",
    ),
    "counters": CheckKind(
        "update",
        "Do optimizers, schedulers and cursor count exactly one update?",
        "The learning rate runs ahead of the run.",
    ),
    "first update": CheckKind(
        "update",
        "Is the first update that of the control?",
        "Losses weighted by the wrong number of ranks, gradients accumulated twice.",
    ),
    "trace": CheckKind(
        "window",
        "Are all updates of the window those of the control?",
        "What a first update does not show: moments, decay, and what grows.",
        is_required=True,
    ),
    "boundaries": CheckKind(
        "window",
        "Were a logging and an evaluation boundary crossed?",
        "The first evaluation on the new ranks fails, hours later.",
    ),
    "coverage": CheckKind(
        "window",
        "Was every sample of the window delivered, once?",
        "Ranks read each other's samples, or skip some.",
        is_required=True,
    ),
    "untouched": CheckKind(
        "untouched",
        "Are the run's own files as they were?",
        "A trial overwrites a checkpoint, or goes on with the run's ledger.",
    ),
}
"""Every check by its name, which stays the same; `migration` is made where there is one."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check that was made, or was not.

    Attributes:
        name: A key of `CHECKS`.
        stage: The stage of a rehearsal that it belongs to.
        status: ``"passed"``, ``"failed"``, ``"warm start"``, ``"unproven"`` or ``"not run"``.
        summary: What was looked at, or why it was not.
        findings: What was found, the worst first.
    """

    name: str
    stage: str
    status: str
    summary: str
    findings: tuple[PlainFinding, ...] = ()

    @classmethod
    def of(cls, name: str, status: str, summary: str, findings: Iterable[PlainFinding] = ()) -> Check:
        """A check of `CHECKS`; of findings, what all kinds of them have in common is kept."""
        fields = PlainFinding.__struct_fields__
        plain = [PlainFinding(**{field: getattr(one, field) for field in fields}) for one in findings]
        plain.sort(key=lambda one: one.precedence)
        return cls(name=name, stage=CHECKS[name].stage, status=status, summary=summary, findings=tuple(plain))

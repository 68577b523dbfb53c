"""What a rehearsal can find, beside what the reports that it gathers have found."""

from __future__ import annotations

from resumable_data.findings import MISSING_EVIDENCE, VIOLATION, Kind, PlainFinding

_SCRATCH = "Give the job what the context has for it: ledger=context.ledger, and context.folder for files."
_LOOP = "Look at what accumulate() and step() call, and when: the schedule once per update, after the optimizer."

KINDS = {
    "RD971": Kind(VIOLATION, "the job's own code failed", "Read its traceback; nothing after it was tried."),
    "RD972": Kind(
        VIOLATION, "the checkpoint was not loaded", "Make the program the one that saved, or declare what may differ."
    ),
    "RD973": Kind(VIOLATION, "the job's loader writes a ledger outside of the rehearsal's folder", _SCRATCH),
    "RD974": Kind(
        MISSING_EVIDENCE,
        "what the program was made of, and on which ranks, is not known",
        "Save with save_checkpoint(); or `resumable-data manifest adopt`, which makes of the files what they tell.",
    ),
    "RD975": Kind(
        VIOLATION,
        "evaluation of the same examples gives other results each time",
        "Evaluate in eval() mode, and look for dropout that is called with training=True.",
    ),
    "RD976": Kind(
        VIOLATION,
        "the probe's examples are not those that logits were stored of",
        "Give the same examples: make them of a fixed seed, or keep them in a file.",
    ),
    "RD977": Kind(
        VIOLATION,
        "logits are further from the stored ones than the tolerance of their dtype",
        "Where the state is what was saved, look at how it is laid out on ranks, at kernels, and at precision.",
    ),
    "RD978": Kind(VIOLATION, "evaluation gives values that are not finite", "Load an earlier checkpoint."),
    "RD979": Kind(
        VIOLATION,
        "the migration is of another checkpoint",
        "Make one of this checkpoint: `resumable-data plan CHECKPOINT ... -o FILE`.",
    ),
    "RD980": Kind(
        MISSING_EVIDENCE,
        "the global batch changes, and no trace can show what that does",
        "A material change of the batch needs a quality run: train with it, and judge the result by its quality.",
    ),
    "RD981": Kind(
        VIOLATION, "the global batch is not what was declared", "Start with the same one, or declare another."
    ),
    "RD982": Kind(
        VIOLATION,
        "the loader weighs losses for another number of ranks than the model averages gradients over",
        "Give the loader the mesh, with data_axes= naming its data-parallel axes, or reduction_size=.",
    ),
    "RD984": Kind(
        VIOLATION,
        "an update read other samples than the order has where the checkpoint stands",
        "Load the loader's state with the checkpoint, and make the loader as it was made.",
    ),
    "RD985": Kind(
        VIOLATION,
        "an update did not move the parameters, or not by a finite amount",
        "Look at whether gradients reach the optimizer's parameters, and at the learning rate.",
    ),
    "RD986": Kind(VIOLATION, "something did not count exactly one update", _LOOP),
    "RD987": Kind(
        MISSING_EVIDENCE,
        "there is no control to compare with",
        "Record one on the ranks that saved, and at least two repeats: --record TRACE.",
    ),
    "RD988": Kind(
        VIOLATION,
        "more samples are replayed or omitted than was declared",
        "Load the loader's state with the checkpoint, or declare the bound.",
    ),
    "RD989": Kind(
        VIOLATION,
        "the ranks are not those that the migration declares",
        "Rehearse on the declared ranks; or declare these: `resumable-data plan`.",
    ),
    "RD991": Kind(
        VIOLATION,
        "a file of the run was changed, made or deleted during the rehearsal",
        "Find out who wrote it: the job's code, or the run itself. Rehearse on a copy where the run goes on.",
    ),
}


def finding(code: str, where: str, *, expected: str, found: str) -> PlainFinding:
    """A finding of a rehearsal."""
    return PlainFinding.of(KINDS, code, where, expected=expected, found=found)

"""What a check of a program's state can find."""

from __future__ import annotations

import msgspec

from resumable_data.findings import MISSING_EVIDENCE, NOTE, VIOLATION, WARNING, Kind, PlainFinding

_LOAD = "Load it with load_checkpoint(), which is strict in both directions; or declare it."
_ORDER = "Find what was loaded into the program after, or beside, the checkpoint."

KINDS = {
    "RD941": Kind(VIOLATION, "the checkpoint has what the program did not load", _LOAD),
    "RD942": Kind(VIOLATION, "the program has what the checkpoint lacks: it kept its own value", _LOAD),
    "RD943": Kind(VIOLATION, "another shape or kind than was saved", "Make the program the one that saved."),
    "RD944": Kind(WARNING, "another dtype than was saved; the values are the saved ones, cast", "Declare it."),
    "RD945": Kind(VIOLATION, "a tensor of a model is not what was saved", _ORDER),
    "RD946": Kind(VIOLATION, "a state of an optimizer is not what was saved", _ORDER),
    "RD947": Kind(
        VIOLATION,
        "a state of an optimizer is that of another parameter",
        "Load optimizers by names of parameters, not by their order.",
    ),
    "RD948": Kind(VIOLATION, "a setting or counter is not what was saved", _ORDER),
    "RD949": Kind(VIOLATION, "optimizers, schedulers and the cursor did not count the same updates", _ORDER),
    "RD950": Kind(
        WARNING,
        "a warm start: weights were loaded, and the optimizer begins anew",
        "Load the optimizer's state too; or give the run an identity of its own.",
    ),
    "RD951": Kind(VIOLATION, "values are not finite", "Load an earlier checkpoint."),
    "RD952": Kind(
        VIOLATION, "a moment of a parameter that was stepped is zero everywhere", "Load an earlier checkpoint."
    ),
    "RD953": Kind(VIOLATION, "what was tied when it was saved is not tied, or the reverse", "Tie it as it was."),
    "RD954": Kind(MISSING_EVIDENCE, "random states were saved and not restored", "Put RandomStates into the state."),
    "RD955": Kind(WARNING, "a mode or version that changes results is another one", "Set it as it was; or declare it."),
    "RD956": Kind(VIOLATION, "another global batch than was saved", "Start with the same one, or declare a migration."),
    "RD957": Kind(VIOLATION, "something changed before any optimizer step", "Find what writes to it."),
    "RD958": Kind(NOTE, "the checkpoint has no run manifest: settings and ties were not compared", "None needed."),
    "RD959": Kind(
        VIOLATION,
        "a buffer that checkpoints do not hold is not what it was at the save",
        "Build it as it was, or make it persistent, so that it is saved and loaded.",
    ),
    "RD960": Kind(
        WARNING,
        "a buffer that checkpoints do not hold was not compared with what it was at the save",
        "Look at how it is built: its dtype or shape is another one, or its digest is not known.",
    ),
    "RD961": Kind(VIOLATION, "a tensor beside models and optimizers, say an average, is not what was saved", _ORDER),
}


class StateFinding(PlainFinding, frozen=True, kw_only=True):
    """One thing that a check of the state found.

    Attributes:
        count: How many the same is found of; `where` names the first ones.
        is_of_model: Whether it is about a model, some of it or all.
    """

    count: int = 1
    is_of_model: bool = False


def state_finding(code: str, keys: list[str], *, expected: str, found: str, is_of_model: bool = False) -> StateFinding:
    """A finding about some keys: early, middle and late ones of many are named."""
    shown = keys if len(keys) <= 4 else [keys[0], keys[len(keys) // 2], keys[-1]]
    more = f" and {len(keys) - len(shown)} more" if len(keys) > len(shown) else ""
    one = StateFinding.of(KINDS, code, ", ".join(shown) + more, expected=expected, found=found)
    return msgspec.structs.replace(one, count=len(keys), is_of_model=is_of_model)

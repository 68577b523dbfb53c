"""The part of a checkpoint that a loader or sampler makes: a cursor and its seal. And the way from it to a start."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from resumable_data.cursor import (
    STATE_KEY,
    Cursor,
    check_allowed,
    decode_cursor,
    encode_cursor,
    require_room,
    resume_cursor,
)
from resumable_data.errors import CorruptStateError, MissingStateError, UsageError
from resumable_data.sampler.seal import SEAL_KEY, check_seal, make_seal

if TYPE_CHECKING:
    from resumable_data.cursor import Recipe, RecipeChange
    from resumable_data.plan import RunSchedule

    State = Mapping[str, Any] | Cursor | None

_logger = logging.getLogger(__name__)

FRESH_START = "fresh_start"
"""The name in ``allow=`` that permits an empty state."""


def make_state(cursor: Cursor) -> dict[str, torch.Tensor]:
    """The state dict that holds `cursor`, as a uint8 tensor of fixed size, and its seal; new ones each time."""
    encoded = encode_cursor(cursor)
    return {STATE_KEY: torch.frombuffer(bytearray(encoded), dtype=torch.uint8), SEAL_KEY: make_seal(encoded)}


def seal_state(state: dict[str, torch.Tensor], nonce: int) -> dict[str, torch.Tensor]:
    """The same state, sealed with the number of a save, below 2^63."""
    return {**state, SEAL_KEY: make_seal(state[STATE_KEY].numpy().tobytes(), nonce)}


def start_cursor(
    state: State,
    recipe: Recipe,
    *,
    allow: Collection[str],
    schedule: RunSchedule | None = None,
    declared: Sequence[RecipeChange] = (),
) -> Cursor:
    """The cursor that a job with `recipe` starts at.

    Args:
        state: What `make_state` gave; or a cursor, say of a run that is taken over.
        recipe: What this job declares.
        allow: Names of recipe fields that may differ, and `FRESH_START`.
        schedule: How this job cuts the run's positions; by its recipe when None.
        declared: See `resume_cursor`.

    Raises:
        UsageError: `state` is neither, or `allow` names what cannot be allowed.
        MissingStateError: `state` has no cursor, and a fresh start is not allowed.
        CorruptStateError: The cursor is damaged.
        RecipeMismatchError: It was counted under another recipe.
        StateError: A later state of the run would not fit its tensor, say for one migration too many.
    """
    names = {allow} if isinstance(allow, str) else set(allow)
    allowed = check_allowed(names - {FRESH_START})
    saved = read_state(state, fresh_start=FRESH_START in names)
    if saved is None:
        return Cursor.begin(recipe)
    return resume_cursor(saved, recipe, allow=allowed, schedule=schedule, declared=declared)


def tell_unchecked(state: State, cursor: Cursor) -> None:
    """Log what a state that DCP, or anybody, put into a loader does not say of the rest of its checkpoint."""
    if isinstance(state, Mapping) and SEAL_KEY in state:
        _logger.info(
            "loaded update %d, position %d: the cursor and its seal are right. Not checked: whether the checkpoint's "
            "files are whole and its contents those that were saved, and whether model and optimizer were loaded, and "
            "are of the same save. load_checkpoint() checks that, and resumable_data.validation.check_state() "
            "afterwards.",
            cursor.updates,
            cursor.position,
        )


def read_state(state: State, *, fresh_start: bool) -> Cursor | None:
    """The cursor in a state dict; None where there is none and a fresh start is allowed.

    Raises:
        UsageError: `state` is no mapping.
        MissingStateError: There is none.
        CorruptStateError: It is damaged.
        StateError: It was given as a cursor, and takes too many bytes for a checkpoint.
    """
    if isinstance(state, Cursor):
        state.check()
        require_room(state)  # a take-over was never saved by a loader that made sure of it
        return state
    if state is not None and not isinstance(state, Mapping):
        raise UsageError(
            f"expected the dict that state_dict() returned, found {type(state).__name__}. Nothing was loaded; give the "
            "whole dict, as it was saved."
        )
    if not state:
        if fresh_start:
            return None
        raise MissingStateError(
            "expected the state of a loader, found an empty one: training would start again at position 0 and repeat "
            'all samples. If that is meant, call load_state_dict(None, allow={"fresh_start"}).'
        )
    tensor = state.get(STATE_KEY)
    if tensor is None:
        raise MissingStateError(
            f"expected the key {STATE_KEY!r} in the state, found {sorted(map(str, state))[:8]}: this is the state of "
            "something else. Nothing was loaded; give what this loader's state_dict() returned."
        )
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise CorruptStateError(f"expected {STATE_KEY!r} to be a uint8 tensor of one dimension, found {tensor!r:.200}")
    encoded = tensor.cpu().numpy().tobytes()
    cursor = decode_cursor(encoded)
    if SEAL_KEY in state:  # a state that was put together by hand may have none
        check_seal(state[SEAL_KEY], encoded)
    return cursor

"""Committed progress, the recipe it was counted under, and the digest of what was delivered."""

from resumable_data.cursor.codec import STATE_KEY, STATE_NUM_BYTES, decode_cursor, encode_cursor, require_room
from resumable_data.cursor.coverage import (
    NO_ROWS,
    CoverageSpan,
    Lanes,
    add_lanes,
    row_hashes,
    sum_lanes,
)
from resumable_data.cursor.cursor import Committed, Cursor, Migration
from resumable_data.cursor.phase import PHASE_NUM_BYTES, Phase, decode_phase, encode_phase, recipe_hash
from resumable_data.cursor.recipe import Recipe, RecipeChange, check_allowed, compare_recipes, describe_changes
from resumable_data.cursor.resume import new_cursor, resume_cursor
from resumable_data.cursor.takeover import TakeOver

__all__ = [
    "NO_ROWS",
    "PHASE_NUM_BYTES",
    "STATE_KEY",
    "STATE_NUM_BYTES",
    "Committed",
    "CoverageSpan",
    "Cursor",
    "Lanes",
    "Migration",
    "Phase",
    "Recipe",
    "RecipeChange",
    "TakeOver",
    "add_lanes",
    "check_allowed",
    "compare_recipes",
    "decode_cursor",
    "decode_phase",
    "describe_changes",
    "encode_cursor",
    "encode_phase",
    "new_cursor",
    "recipe_hash",
    "require_room",
    "resume_cursor",
    "row_hashes",
    "sum_lanes",
]

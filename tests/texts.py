"""Texts of any characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

# Not `st.characters`, for which hypothesis makes tables at its first use in a clone: that takes seconds.
CHARACTERS = (st.integers(0, 0x7F) | st.integers(0x80, 0xD7FF) | st.integers(0xE000, 0x10FFFF)).map(chr)
"""All but surrogates; every third one is ASCII."""


def texts(*, min_size: int = 0, max_size: int, without: str = "") -> SearchStrategy[str]:
    """Texts of so many characters, some of which may be left out."""
    some = CHARACTERS.filter(lambda character: character not in without)
    return st.lists(some, min_size=min_size, max_size=max_size).map("".join)

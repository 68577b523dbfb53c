"""How many examples hypothesis draws: all of them, or a few where the slow tests are left out."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

is_quick = False
"""Whether ``-m "not slow"`` was given, as `make test` does; set by conftest.py before any test is imported."""


def examples(number: int, *, quick: int, **options: Any) -> settings:
    """Settings of `number` examples, and of `quick` ones in `make test`."""
    return settings(max_examples=quick if is_quick else number, **options)

"""A bar that shows how far a command is, on standard error, and only where that is a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 30
_REDRAW_S = 0.1
_CLEAR_LINE = "\r\033[K"


class ProgressBar:
    """Shows bytes done; to be used in a ``with`` statement, after which the line is free again.

    Args:
        stream: Where it is drawn; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_shown = self._stream.isatty()
        self._start_s = time.monotonic()
        self._drawn_s = float("-inf")

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_shown:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()

    def __call__(self, done: int, total: int) -> None:
        """Show how many bytes of how many are done, at most ten times a second."""
        now_s = time.monotonic()
        if self._is_shown and now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            self._stream.write(_CLEAR_LINE + draw(done, total, now_s - self._start_s))
            self._stream.flush()


def draw(done: int, total: int, elapsed_s: float) -> str:
    """The bar as text: the share, the bytes, the speed, and the time that is left."""
    share = done / total if total else 1.0
    cells = int(share * _WIDTH)
    speed = done / elapsed_s if elapsed_s > 0 else 0.0
    left_s = round((total - done) / speed) if speed else 0
    return (
        f"[{'#' * cells}{' ' * (_WIDTH - cells)}] {share:4.0%}  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB  "
        f"{speed / 1e6:,.1f} MB/s  {left_s // 60}:{left_s % 60:02} left"
    )

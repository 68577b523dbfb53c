"""The bar of commands that take long."""

from __future__ import annotations

import io

from resumable_data.cli.progress import ProgressBar, draw


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar() -> None:
    """The bar says the share, the bytes, the speed and the time that is left."""
    assert draw(0, 10**9, 0.0) == f"[{' ' * 30}]   0%  0 of 1,000 MB  0.0 MB/s  0:00 left"
    assert draw(10**8, 10**9, 10.0) == f"[###{' ' * 27}]  10%  100 of 1,000 MB  10.0 MB/s  1:30 left"
    assert draw(10**9, 10**9, 10.0) == f"[{'#' * 30}] 100%  1,000 of 1,000 MB  100.0 MB/s  0:00 left"


def test_only_a_terminal_sees_it() -> None:
    """A terminal's line is free again at the end, and a file gets nothing."""
    for stream, is_seen in ((Terminal(), True), (io.StringIO(), False)):
        with ProgressBar(stream) as progress:
            progress(1, 2)
            assert ("50%" in stream.getvalue()) == is_seen
        assert stream.getvalue().endswith("\r\033[K") == is_seen


def test_it_is_drawn_seldom() -> None:
    """Many short steps are not a flood."""
    stream = Terminal()
    with ProgressBar(stream) as progress:
        for done in range(1000):
            progress(done, 1000)
    assert 1 <= stream.getvalue().count("[") < 100

"""docs/moving.md: one real move, by the commands of the page, from the first launch to the next manifest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.code_blocks import SESSION_LANGUAGES, find_blocks, run_all_sessions

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/moving.md"
SCRIPT = ROOT / "docs/examples/move_mesh.py"


def test_page_and_script_are_short() -> None:
    """Two screens of text, and a script of 110 lines; each block of the page is one of those that are run below."""
    blocks = find_blocks(PAGE.read_text(encoding="utf-8"))
    assert {block.language for block in blocks} <= SESSION_LANGUAGES
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) < 130
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 110


@pytest.mark.slow
def test_the_move_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page prints what it shows, and no warning."""
    shutil.copy(SCRIPT, tmp_path)
    for name, value in {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    run_all_sessions(PAGE, tmp_path)

"""The code that the documentation shows runs, and prints what the documentation says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.code_blocks import Block, find_blocks, python_program, run_page

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = sorted(ROOT.glob("docs/*.md"))
PAGES = [page for page in [README, *DOCS] if page.exists()]


def test_readme_exists() -> None:
    """A project with documentation pages has the page that leads to them."""
    assert README.exists() or not DOCS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    """Every code block of a page that is not marked ``not run`` does what the page says."""
    run_page(page, tmp_path)


def write_page(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_blocks_keep_their_language_and_line() -> None:
    """A block is found with its language, its line in the page and its text without the fence's indent."""
    text = "intro\n\n1. item\n\n   ```python\n   x = 1\n   ```\n\n~~~sh\ntrue\n~~~\n"
    assert find_blocks(text) == [
        Block(language="python", line=6, lines=("x = 1",), not_run=None),
        Block(language="sh", line=10, lines=("true",), not_run=None),
    ]


def test_longer_fence_holds_a_shorter_one() -> None:
    """A fence ends only at a fence at least as long."""
    (block,) = find_blocks("````text\n```python\n1/0\n```\n````\n")
    assert (block.language, len(block.lines)) == ("text", 3)


def test_python_blocks_share_one_namespace_and_keep_their_lines() -> None:
    """Later blocks see the names of earlier ones, and a traceback names the page's own line."""
    program = python_program(find_blocks("```python\nx = 1\n```\ntext\n```python\nassert x\n```\n"))
    assert program.splitlines() == ["", "x = 1", "", "", "", "assert x"]


def test_block_marked_not_run_is_not_run(tmp_path: Path) -> None:
    """A mark with a reason right before a block leaves out that block alone."""
    run_page(write_page(tmp_path, "<!-- not run: divides -->\n\n```python\n1/0\n```\n"), tmp_path)
    page = write_page(tmp_path, "<!-- not run: no -->\n```sh\nfalse\n```\n```python\n1/0\n```\n")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_page(page, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nx = 1\n", "never ends"),
        ("<!-- not run: -->\n```python\n```\n", "needs a reason"),
        ("<!-- not run: lost -->\nprose\n```python\n```\n", "expected the block"),
        ("<!-- not run: lost -->\n", "stands before no block"),
    ],
)
def test_page_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    """A block or a mark that would be passed over in silence is an error."""
    with pytest.raises(ValueError, match=message):
        find_blocks(text)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise SystemExit(3)\n```\n",
        "```python\nimport warnings\nwarnings.warn('old')\n```\n",
        "```sh\nfalse\ntrue\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
    ],
)
def test_failing_page_fails(text: str, tmp_path: Path) -> None:
    """An exit code, a warning or another output than the page shows is a failure."""
    with pytest.raises(AssertionError, match=r"page\.md"):
        run_page(write_page(tmp_path, text), tmp_path)


def test_session_compares_output_with_ellipsis(tmp_path: Path) -> None:
    """Commands of one page run in one folder, and ``...`` stands for what differs from run to run."""
    text = (
        "```python\nopen('made.txt', 'w').close()\n```\n"
        "```console\n$ ls\n...made.txt\n...\n$ echo a \\\n> b\na b\n$ echo anything\n```\n"
    )
    run_page(write_page(tmp_path, text), tmp_path)

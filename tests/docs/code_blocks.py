"""Finds the code blocks of a Markdown page, and runs them as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, Example, OutputChecker
from pathlib import Path

PYTHON_LANGUAGES = frozenset({"python", "py"})
SHELL_LANGUAGES = frozenset({"sh", "bash", "shell"})
SESSION_LANGUAGES = frozenset({"console"})
RUN_LANGUAGES = PYTHON_LANGUAGES | SHELL_LANGUAGES | SESSION_LANGUAGES

BLOCK_TIME_S_MAX = 120

_OPENING = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)$")
_MARK = re.compile(r"^\s*<!--\s*not run:(?P<reason>.*)-->\s*$")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block: ``line`` is the 1-based line of its first line of code."""

    language: str
    line: int
    lines: tuple[str, ...]
    not_run: str | None


def find_blocks(text: str) -> list[Block]:
    """All fenced blocks of a page, in order.

    Raises:
        ValueError: a block never ends, or a ``not run`` mark gives no reason or stands before no block.
    """
    blocks: list[Block] = []
    lines = text.splitlines()
    reason: str | None = None
    at = 0
    while at < len(lines):
        if mark := _MARK.match(lines[at]):
            reason = mark["reason"].strip()
            if not reason:
                raise ValueError(f"line {at + 1}: a block that is not run needs a reason")
        elif opening := _OPENING.match(lines[at]):
            end = _closing_line(lines, at, opening["fence"])
            language = opening["info"].strip().split(" ")[0].lower()
            code = tuple(line.removeprefix(opening["indent"]) for line in lines[at + 1 : end])
            blocks.append(Block(language=language, line=at + 2, lines=code, not_run=reason))
            reason, at = None, end
        elif lines[at].strip() and reason is not None:
            raise ValueError(f"line {at + 1}: expected the block that the mark 'not run: {reason}' is about")
        at += 1
    if reason is not None:
        raise ValueError(f"the mark 'not run: {reason}' stands before no block")
    return blocks


def _closing_line(lines: list[str], opening: int, fence: str) -> int:
    for at in range(opening + 1, len(lines)):
        stripped = lines[at].strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            return at
    raise ValueError(f"line {opening + 1}: the block never ends")


def python_program(blocks: list[Block]) -> str:
    """One program of a page's Python blocks, each on the lines it has in the page, so that tracebacks fit."""
    program: list[str] = []
    for block in blocks:
        if block.language in PYTHON_LANGUAGES and block.not_run is None:
            program += [""] * (block.line - 1 - len(program))
            program += block.lines
    return "\n".join(program) + "\n" if program else ""


def run_page(page: Path, cwd: Path) -> None:
    """Run a page in the folder ``cwd``: all its Python blocks as one program, then its shell blocks in order.

    In a ``console`` block each line after ``$`` is a command, and what follows is the output it must print,
    where ``...`` stands for anything; a command without output lines may print what it likes.

    Raises:
        AssertionError: a block failed, or printed something else than the page says.
        ValueError: the page's blocks cannot be read.
    """
    blocks = find_blocks(page.read_text(encoding="utf-8"))
    if program := python_program(blocks):
        script = cwd / f"{page.stem}.py"
        script.write_text(program, encoding="utf-8")
        _run([sys.executable, "-W", "error", str(script)], cwd, f"the Python blocks of {page.name}")
    for block in blocks:
        if block.not_run is None and block.language in SHELL_LANGUAGES:
            _run_shell("\n".join(block.lines), cwd, f"{page.name}:{block.line}")
        elif block.not_run is None and block.language in SESSION_LANGUAGES:
            _run_session(block, cwd, page.name)


def run_all_sessions(page: Path, cwd: Path) -> None:
    """Run the sessions of a page as `run_page` does, those too that are marked ``not run``, as they take long.

    Raises:
        AssertionError: a block failed, or printed something else than the page says.
    """
    for block in find_blocks(page.read_text(encoding="utf-8")):
        if block.language in SESSION_LANGUAGES:
            _run_session(block, cwd, page.name)


def _run_session(block: Block, cwd: Path, page_name: str) -> None:
    if block.lines and not block.lines[0].startswith("$ "):
        raise ValueError(f"{page_name}:{block.line}: expected a command after '$ ', found {block.lines[0]!r}")
    starts = [at for at, line in enumerate(block.lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        where = f"{page_name}:{block.line + start}"
        command = [block.lines[start].removeprefix("$ ")]
        output_at = start + 1
        while command[-1].endswith("\\") and output_at < end:
            command.append(block.lines[output_at].removeprefix("> "))
            output_at += 1
        found = _run_shell("\n".join(command), cwd, where)
        expected = "\n".join(block.lines[output_at:end]).strip()
        if expected:
            _check_output(expected + "\n", found.strip() + "\n", where)


def _check_output(expected: str, found: str, where: str) -> None:
    checker, options = OutputChecker(), ELLIPSIS | NORMALIZE_WHITESPACE
    if not checker.check_output(expected, found, options):
        difference = checker.output_difference(Example("", expected), found, options)
        raise AssertionError(f"{where}: the command printed something else than the page says\n{difference}")


def _run_shell(code: str, cwd: Path, where: str) -> str:
    return _run(["bash", "-euo", "pipefail", "-c", code], cwd, where)


def _run(command: list[str], cwd: Path, where: str) -> str:
    # The commands of the package stand beside the interpreter that runs the tests.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "COLUMNS": "120"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BLOCK_TIME_S_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"{where}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout

"""The `tokens build` command: what it writes and says, and what is left of it where it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resumable_data.cli import main
from tests.unit.tokenizing.reading import byte_tokens, read_megatron

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = "first\n\nsecond\nline\n"


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a text in it."""
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(TEXT)


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report says what was written and of what; nothing is on standard error."""
    assert main(["tokens", "build", "book.txt", "-o", "book"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[:5] == [
        f"files        {tmp_path}/book.bin and {tmp_path}/book.idx",
        "documents    1",
        "tokens       20 of type uint16",
        "tokenizer    bytes, 257 tokens, end token 256",
        "from         1 file, 19 bytes",
    ]
    assert lines[5].startswith("fingerprint  tokens-v1 documents=1 tokens=20 ")
    assert captured.err == ""
    assert read_megatron(Path("book")) == byte_tokens([TEXT.encode()])


def test_json_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option does what it says, and the report is one line of JSON."""
    assert main(["tokens", "build", "book.txt", "-o", "book", "--split-on", "blank-lines", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report.pop("fingerprint").startswith("tokens-v1 documents=2 ")
    assert report == {
        "schema_version": 1,
        "files": [f"{tmp_path}/book.bin", f"{tmp_path}/book.idx"],
        "documents": 2,
        "tokens": 18,
        "skipped": 0,
        "dtype": "uint16",
        "tokenizer": {"kind": "bytes", "path": "", "digest": "", "vocabulary": 257, "end_token": 256},
        "inputs": 1,
        "input_bytes": 19,
    }
    build = ["tokens", "build", "book.txt", "-o", "book.idx", "--force", "--split-on", r"\n"]
    lines = [b"first", b"", b"second", b"line"]
    assert main([*build, "--end-token", "10"]) == 0
    assert read_megatron(Path("book")) == byte_tokens(lines, 10)
    assert main([*build, "--no-end-token"]) == 0
    assert "documents    3, 1 without a token left out" in capsys.readouterr().out
    assert read_megatron(Path("book")) == byte_tokens(lines, None)
    Path("lines").write_text('{"body":"a"}\n')
    assert main(["tokens", "build", "lines", "-o", "lines", "--format", "jsonl", "--field", "body"]) == 0
    assert read_megatron(Path("lines")) == byte_tokens([b"a"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "the following arguments are required: INPUT"),
        (["book.txt"], 2, "required: -o/--output"),
        (["book.txt", "-o", "out", "--jobs", "0"], 2, "must be at least 1"),
        (["book.txt", "-o", "out", "--end-token", "3", "--no-end-token"], 2, "not allowed with"),
        (["book.txt", "-o", "out", "--end-token", "end"], 2, "bytes have no names, found 'end'"),
        (["book.txt", "-o", "out", "--end-token", "300"], 2, "an end token from 0 to 256"),
        (["book.txt", "-o", "out", "--split-on", r"\q"], 2, "hexadecimal digits"),
        (["book.txt", "-o", "out", "--field", "a"], 2, "field (--field)"),
        (["book.txt", "-o", "out/"], 2, "found the folder"),
        (["book.txt", "-o", "out/a"], 2, "there is no folder"),
        (["missing.txt", "-o", "out"], 3, "No such file"),
        ([".", "-o", "out"], 3, "found a directory"),
        (["book.txt", "-o", "out", "--format", "jsonl"], 3, "book.txt, line 1"),
        (["book.txt", "-o", "out", "--tokenizer", "missing.json"], 3, "missing.json"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str) -> None:
    """What is wrong is said on standard error, by the exit code too, and nothing is written."""
    assert main(["tokens", "build", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert os.listdir() == ["book.txt"]


def test_files_are_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """A dataset that exists stays as it is."""
    assert main(["tokens", "build", "book.txt", "-o", "book"]) == 0
    before = Path("book.bin").read_bytes(), Path("book.idx").read_bytes()
    assert main(["tokens", "build", "book.txt", "-o", "book", "--split-on", "blank-lines"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (Path("book.bin").read_bytes(), Path("book.idx").read_bytes()) == before


SLOW_TOKENIZER = """
import sys, time
from pathlib import Path
from resumable_data.cli import main, tokens
from resumable_data.tokenizing import ByteTokenizer, build

class Slow(ByteTokenizer):
    def encode(self, documents):
        if len(documents) > 1:
            Path("started").touch()
            time.sleep(600)
        return super().encode(documents)

if __name__ == "__main__":
    tokens.ByteTokenizer = Slow
    build._PART_BYTES = 10
    sys.exit(main(["tokens", "build", "long.txt", "-o", "out", "--split-on", r"\\n", *sys.argv[1:]]))
"""
SLOW_PROGRESS = """
import time
from pathlib import Path
from resumable_data.tokenizing import build

def wait(done, total):
    Path("started").touch()
    time.sleep(600)

if __name__ == "__main__":
    build._PART_BYTES = 10
    build.build_tokens(["long.txt"], "out", split_on=b"\\n", jobs=2, progress=wait)
"""


class Script:
    """A build in processes of its own that takes for ever once its first part is written."""

    def __init__(self, code: str, *arguments: str) -> None:
        Path("slow.py").write_text(code)
        Path("long.txt").write_text("0123456789\n" + "a\n" * 10)
        with open("errors", "wb") as errors:
            command = [sys.executable, "slow.py", *arguments]
            self.process = subprocess.Popen(command, stderr=errors, start_new_session=True)

    def __enter__(self) -> Script:
        assert wait_for(lambda: Path("started").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, Path("errors").read_text()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def is_gone(self) -> bool:
        """Whether it ends soon with all its processes."""

        def nothing_left() -> bool:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return True
            return False

        return wait_for(nothing_left)


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("number", "jobs"),
    [(signal.SIGINT, 1), (signal.SIGTERM, 1), pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow)],
)
def test_stopped_build_leaves_nothing(number: signal.Signals, jobs: int) -> None:
    """Ctrl-C, which a terminal sends to all processes, and a scheduler's signal remove what was begun."""
    with Script(SLOW_TOKENIZER, "--jobs", str(jobs)) as script:
        assert sorted(name for name in os.listdir() if "out" in name) == [".out.bin.unfinished", ".out.idx.unfinished"]
        os.killpg(script.process.pid, number)
        assert script.process.wait(60) == 130
        assert Path("errors").read_text() == "stopped; nothing was written\n"
        assert not [name for name in os.listdir() if "out" in name]
        assert script.is_gone()


def test_killed_build_leaves_no_dataset() -> None:
    """After SIGKILL nothing can be opened, and the next build needs no clearing up."""
    with Script(SLOW_TOKENIZER) as script:
        script.process.kill()
        script.process.wait()
    assert sorted(name for name in os.listdir() if "out" in name) == [".out.bin.unfinished", ".out.idx.unfinished"]
    assert main(["tokens", "show", "out"]) == 3
    assert main(["tokens", "build", "book.txt", "-o", "out"]) == 0
    assert read_megatron(Path("out")) == byte_tokens([TEXT.encode()])
    assert sorted(name for name in os.listdir() if "out" in name) == ["out.bin", "out.idx"]


@pytest.mark.slow
def test_workers_end_with_the_one_that_started_them() -> None:
    """Workers end when the process that started them is killed, though nobody tells them."""
    with Script(SLOW_PROGRESS) as script:
        script.process.kill()
        script.process.wait()
        assert script.is_gone()

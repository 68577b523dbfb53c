"""The `tokens show` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import resumable_data as rd
from resumable_data.cli import main
from tests.unit.sources.writing import write_megatron, write_npy

TOKENS = [5, 6, 0, 7, 0, 0]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the same documents in several formats."""
    monkeypatch.chdir(tmp_path)
    write_megatron(tmp_path, [[[5, 6, 0]], [[7, 0]], [[0]]])
    np.array(TOKENS, np.uint16).tofile("raw")
    write_npy(Path("lengths.npy"), [3, 2, 1], "<i4")
    write_npy(Path("offsets.npy"), [0, 3, 5, 6], "<i8")


@pytest.mark.parametrize(
    ("arguments", "boundaries"),
    [
        (["corpus"], None),
        (["raw", "--dtype", "uint16", "--end-token", "0"], "end_token=0"),
        (["raw", "--dtype", "uint16", "--lengths-file", "lengths.npy"], "lengths"),
        (["raw", "--dtype", "uint16", "--offsets", "offsets.npy"], "offsets.npy"),
    ],
)
def test_any_source(capsys: pytest.CaptureFixture[str], arguments: list[str], boundaries: str | None) -> None:
    """What open_tokens opens is described, with where its documents end."""
    assert main(["tokens", "show", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema_version"], found["source"]["documents"], found["source"]["tokens"]) == (1, 3, 6)
    assert (found["min"], found["median"], found["max"], found["mean"]) == (1, 2, 3, 2.0)
    assert found["last_token"] == {"token": 0, "looked_at": 3}
    assert found["source"].get("boundaries") == boundaries
    assert found["fingerprint"] == rd.open_tokens("corpus").fingerprint()
    assert main(["tokens", "show", *arguments]) == 0
    text = capsys.readouterr().out
    assert "last token   0 in all of 3 documents that were looked at\n" in text
    assert text.endswith("   2-3          2       5  ########################################\n")
    assert boundaries is None or f"boundaries   {boundaries}\n" in text


def test_full(capsys: pytest.CaptureFixture[str]) -> None:
    """The fingerprint of all tokens is taken where that is asked for."""
    assert main(["tokens", "show", "corpus", "--full", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == rd.open_tokens("corpus").fingerprint(full=True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["raw"], 2, "no dtype="),
        (["raw", "--dtype", "word"], 2, "dtype must be an integer type"),
        (["raw", "--dtype", "uint16"], 2, "one of lengths=, end_token= and offsets="),
        (["corpus", "--end-token", "0"], 2, "cannot be given"),
        (["raw", "--dtype", "uint16", "--end-token", "x"], 2, "invalid int value"),
        (["missing"], 3, "No such file"),
        (["raw", "--dtype", "uint16", "--lengths-file", "missing.npy"], 3, "missing.npy"),
        (["raw", "--dtype", "uint16", "--offsets", "lengths.npy"], 3, "lengths.npy"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str) -> None:
    """What is missing or does not fit is said on standard error, and by the exit code."""
    assert main(["tokens", "show", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_commands_do_not_import_torch() -> None:
    """Tokens are made and looked at without the second that importing torch takes, and without tokenizers."""
    code = (
        "import sys; from resumable_data.cli import main\n"
        "main(['tokens', 'show', 'corpus'])\n"
        "main(['tokens', 'build', 'raw', '-o', 'out'])\n"
        "print({'torch', 'tokenizers'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ})
    assert done.stdout.splitlines()[-1] == "set()"

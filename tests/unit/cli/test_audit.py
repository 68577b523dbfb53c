"""The `audit` command: reports, exit codes, and what goes wrong in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from resumable_data import cli
from resumable_data.audit import Bounds
from resumable_data.audit.findings import KINDS
from resumable_data.cli import main
from resumable_data.cursor import encode_cursor
from resumable_data.findings import SEVERITIES
from tests.unit.audit.simulator import Run
from tests.unit.audit.test_clean_histories import make_recipe


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A ledger of two attempts, 3 ranks and then 2."""
    run = Run(tmp_path / "ledger", make_recipe(23, 10, "drop"))
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(2)
    saved = run.checkpoint()
    run.deliver()
    run.kill()
    run.launch(saved, num_replicas=2, microbatch=4)
    run.train(2)
    run.deliver(stop_after=1)
    run.kill()
    return run


def test_text(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict comes first, then counts and a table of attempts."""
    assert main(["audit", str(run.path)]) == 0
    assert (
        capsys.readouterr().out
        == f"""\
PROVEN: every committed sample was delivered exactly once

  ledger     {run.path}
  run        00000000000000aa
  updates    4
  samples    40, up to epoch 2, offset 0
  replayed   0
  omitted    0
  discarded  10
  in flight  6
  dropped    6, as tail="drop" declares

  attempt  parent  ranks  microbatch  updates  delivered  replayed  omitted  discarded  in flight
        1       -      3           2      0-1         30         0        0         10          0
        2       1      2           4      2-3         26         0        0          0          6

     0                                                         52
  1 |===========================xxxxxxxxxxxx                     |
  2 |                          ============================>>>>>>|
     = committed, x discarded, > in flight
"""
    )


def test_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON report has a schema version, the verdict and the counts with their bounds."""
    assert main(["audit", str(run.path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["schema_version"], report["verdict"], report["findings"]) == (1, "proven", [])
    assert report["replayed"] == report["omitted"] == {"low": 0, "high": 0}
    assert report["discarded"] == {"low": 10, "high": 10}
    assert [attempt["num_replicas"] for attempt in report["attempts"]] == [3, 2]


def test_findings_are_told_with_their_remedy(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """An unproven ledger ends with code 1 and says what to do."""
    (run.path / "attempt-000001" / "rank-00001.ledger").unlink()
    assert main(["audit", str(run.path)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("UNPROVEN: evidence is missing\n")
    assert "RD105 missing-evidence: a rank's file is missing" in text
    assert "where     attempt 1, rank 1, updates 0-1" in text
    assert "omitted    0 to 6" in text


def test_limits(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Declared bounds decide on what is counted."""
    assert main(["audit", str(run.path), "--max-discarded", "10"]) == 0
    assert main(["audit", str(run.path), "--max-discarded", "9"]) == 1
    assert "RD501 violation" in capsys.readouterr().out
    assert main(["audit", str(run.path), "--max-replayed", "-1"]) == 2
    assert main(["audit", str(run.path), "--max-replayed", "many"]) == 2


def test_cursor(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cursor proves its coverage as JSON and in the form that checkpoints hold."""
    cursor = run.checkpoint().cursor
    (tmp_path / "cursor.json").write_bytes(cursor.to_json())
    (tmp_path / "cursor.bin").write_bytes(encode_cursor(cursor))
    for name in ("cursor.json", "cursor.bin"):
        assert main(["audit", "--cursor", str(tmp_path / name)]) == 0
        assert capsys.readouterr().out.startswith("PROVEN")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 4096, b"null", b"[" * 5000, None])
def test_unreadable_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None) -> None:
    """What is no cursor is an error in one line, with code 3."""
    path = tmp_path / "cursor.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["audit", "--cursor", str(path)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err


def test_damage(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage is located, with code 3."""
    path = run.path / "attempt-000001" / "rank-00001.ledger"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert main(["audit", str(run.path)]) == 3
    assert f"error: {path}, byte " in capsys.readouterr().err


def test_no_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path without a ledger ends with code 3."""
    assert main(["audit", str(tmp_path / "nothing")]) == 3
    assert main(["audit", str(tmp_path)]) == 3
    assert "expected a ledger at" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["audit"], ["audit", "a", "--cursor", "b"], ["audit", "a", "--what"], ["x"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments end with code 2."""
    assert main(arguments) == 2
    assert capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Asking for help is no error."""
    assert main(["audit", "--help"]) == 0
    assert main(["--version"]) == 0
    assert "0 proven, 1 violated or unproven" in capsys.readouterr().out


def test_internal_error(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody foresaw is one line and code 4; the traceback comes on demand."""

    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("no\nreason")

    monkeypatch.setattr("resumable_data.cli.audit.audit_ledger", fail)
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)
    assert main(["audit", str(run.path)]) == 4
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "1")
    with pytest.raises(ZeroDivisionError):
        main(["audit", str(run.path)])


def test_as_a_program(run: Run) -> None:
    """`python -m resumable_data` runs the command, and survives a reader that goes away."""
    command = [sys.executable, "-m", "resumable_data", "audit", str(run.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_kinds_of_findings() -> None:
    """Each kind has a severity that there is, a title and a remedy."""
    for code, kind in KINDS.items():
        assert (len(code), kind.severity in SEVERITIES) == (5, True)
        assert kind.title
        assert kind.remedy.endswith(".")


def test_bounds_in_words() -> None:
    """Bounds are shown as a number, as a range, or open-ended."""
    shown = [str(Bounds(low, high)) for low, high in ((3, 3), (0, 4), (2, None))]
    assert shown == ["3", "0 to 4", "at least 2"]
    assert Bounds(1, 2) + Bounds(3, None) == Bounds(4, None)


def test_documentation_lists_all_findings() -> None:
    """The table in docs/ledger.md is the table in the code."""
    page = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text()
    for code, kind in KINDS.items():
        assert f"| {code} | {kind.severity} | {kind.title} | {kind.remedy} |" in page

"""The `audit-ids` command: reports, exit codes, and what goes wrong in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from resumable_data.cli import main
from resumable_data.findings import SEVERITIES
from resumable_data.logs import KINDS
from resumable_data.order import Shuffle
from resumable_data.shadowing import KINDS as SHADOW_KINDS
from tests.unit.shadowing.jobs import Job

ALL_KINDS = KINDS | SHADOW_KINDS


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two ranks in which rank 1 reads a sample twice and another one not at all."""
    ids = Shuffle(10, seed=4, name="a").ids(0, np.arange(10)).tolist()
    ids[7] = ids[3]
    path = tmp_path / "log.csv"
    path.write_text("step,rank,id\n" + "".join(f"{at // 2},{at % 2},{one}\n" for at, one in enumerate(ids)))
    return path


def test_text(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict comes first, then counts, the histogram, findings and the first replayed rows."""
    assert main(["audit-ids", str(log), "--samples", "10"]) == 1
    assert (
        capsys.readouterr().out
        == f"""\
VIOLATED: the log is not what was planned

  log        {log}
  plan       none: coverage alone
  samples    10
  rows       10
  replayed   1
  omitted    1

  times seen           IDs
           0             1
           1             8
           2             1

RD701 violation: samples were read more often than planned
  where     {log}, rank 1, step 3
  expected  each ID once
  found     1 more: IDs 0
  remedy    {KINDS["RD701"].remedy}

RD702 violation: planned samples were never read, or not often enough
  where     the whole log
  expected  all of 10 samples
  found     1 missing: IDs 3
  remedy    {KINDS["RD702"].remedy}

  replayed, the first of them:
    ID 0: first rank 1, step 1 ({log} line 5), again rank 1, step 3 ({log} line 9)
"""
    )


def test_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON report has a schema version, the verdict, the counts and findings with their remedies."""
    plan = ["--samples", "10", "--order", "shuffle", "--seed", "4", "--name", "a", "--num-replicas", "2"]
    assert main(["audit-ids", "--json", *plan, str(log)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["schema_version"], report["verdict"], report["subject"]) == (1, "violated", "ids")
    assert (report["replayed"], report["omitted"], report["histogram"]) == (1, 1, [[0, 1], [1, 8], [2, 1]])
    assert [finding["code"] for finding in report["findings"]] == ["RD701", "RD702", "RD703"]
    assert all(finding["remedy"] and finding["expected"] and finding["found"] for finding in report["findings"])


def test_columns_and_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logs without names get them from --columns, others from --id and the like; one log per rank is enough."""
    (tmp_path / "a").write_text("7 0 1 2\n8 3\n")
    assert main(["audit-ids", "--samples", "4", "--columns", "step,ids", str(tmp_path / "a")]) == 0
    (tmp_path / "b.jsonl").write_text('{"sample": 0}\n{"sample": 1}\n')
    assert main(["audit-ids", "--samples", "2", "--id", "sample", str(tmp_path / "b.jsonl")]) == 0
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").write_text(f"{rank}\n{rank + 2}\n")
    plan = ["--samples", "4", "--order", "sequential", "--num-replicas", "2", "--rank-per-file"]
    assert main(["audit-ids", *plan, str(tmp_path / "rank0"), str(tmp_path / "rank1")]) == 0
    assert main(["audit-ids", *plan, str(tmp_path / "rank1"), str(tmp_path / "rank0")]) == 1
    assert "RD703" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--order", "shuffle"],
        ["--samples", "10", "--seed", "3"],
        ["--samples", "10", "--order", "sequential", "--seed", "3"],
        ["--samples", "10", "--order", "torch-shuffle", "--name", "a"],
        ["--samples", "10", "--order", "random"],
        ["--samples", "0"],
        ["--samples", "many"],
        ["--num-replicas", "2"],
        ["--columns", "rank"],
    ],
)
def test_usage(log: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Arguments that have no meaning end with code 2 and no report."""
    files = [str(log)] if arguments else []
    assert main(["audit-ids", *arguments, *files]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: " in captured.err


def test_unreadable(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that cannot be read is an error in one line, with file and line, and code 3."""
    assert main(["audit-ids", "--samples", "4", str(log)]) == 3
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(f"error: {log}, line ")


def test_torch_is_not_imported(log: Path) -> None:
    """Counting starts without the second that importing torch takes; torch's own order is tested where it is made."""
    code = "import sys; from resumable_data.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "audit-ids", "--samples", "10", "--order", "shuffle", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ})
    assert done.stdout.splitlines()[-1] == "False"


def test_findings_are_documented() -> None:
    """The documentation lists each code with its severity, title and remedy."""
    page = (Path(__file__).parents[3] / "docs" / "logs.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| RD")]
    expected = [(code, kind.severity, kind.title, kind.remedy) for code, kind in ALL_KINDS.items()]
    assert rows == [f"| {' | '.join(row)} |" for row in expected]
    assert {kind.severity for kind in ALL_KINDS.values()} <= set(SEVERITIES)
    assert all(code.startswith("RD7") for code in ALL_KINDS)


@pytest.fixture
def shadowed(tmp_path: Path) -> Path:
    """A job that was stopped after 128 of 960 samples on 16 ranks, and went on at the wrong place on 10."""
    Job(tmp_path / "shadow", 16).train(4)
    Job(tmp_path / "shadow", 10, skip=6).train()
    return tmp_path / "shadow"


def test_shadow_as_text(shadowed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report of a shadow has the verdict first, then launches, epochs with a restart, and findings."""
    assert main(["audit-ids", "--shadow", str(shadowed)]) == 1
    assert (
        capsys.readouterr().out
        == f"""\
VIOLATED: rows were replayed or omitted at a restart

  shadow     {shadowed}
  launches   2
  rows       968
  replayed   8
  omitted    0
  discarded  0

  launch  ranks  epochs  batches  rows
       1     16       1       64   128
       2     10       1      420   840

  epoch  launches   by  read again  replayed  omitted
      0       1+2  ids           8         8        0

RD721 violation: {SHADOW_KINDS["RD721"].title} (8)
  where     epoch 0, launches 1+2
  expected  no row read before
  found     8 read again, all of each rank's last batch before the restart
  remedy    {SHADOW_KINDS["RD721"].remedy}
"""
    )


def test_shadow_as_json(shadowed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON report of a shadow has a schema version, the verdict, bounds and findings."""
    assert main(["audit-ids", "--json", "--shadow", str(shadowed)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["schema_version"], report["subject"], report["verdict"]) == (1, "shadow", "violated")
    assert (report["replayed"], report["omitted"]) == ({"low": 8, "high": 8}, {"low": 0, "high": 0})
    assert [finding["code"] for finding in report["findings"]] == ["RD721"]


def test_shadow_exit_codes(shadowed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to complain about is 0, other arguments beside a shadow are 2, and damage or nothing to read is 3."""
    Job(tmp_path / "clean", 2).train()
    assert main(["audit-ids", "--shadow", str(tmp_path / "clean")]) == 0
    for more in (["log.txt"], ["--samples", "3"], ["--rank-per-file"], ["--first-epoch", "1"]):
        assert main(["audit-ids", "--shadow", str(shadowed), *more]) == 2
        assert more[0].removesuffix(".txt").replace("log", "files") in capsys.readouterr().err
    assert main(["audit-ids", "--shadow", str(tmp_path / "nothing")]) == 3
    file = next(shadowed.iterdir())
    file.write_bytes(file.read_bytes().replace(b"RDL", b"XDL"))
    assert main(["audit-ids", "--shadow", str(shadowed)]) == 3
    assert f"error: {file}, byte 0" in capsys.readouterr().err

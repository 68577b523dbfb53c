"""The demo and the training script that it shows."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from resumable_data.cli.demo import find_script
from resumable_data.cli.demo_corpus import build_corpus
from resumable_data.cli.demo_report import read_outcome
from resumable_data.cli.demo_run import DemoError, Job, Kill, Progress, Stage, run_stages
from resumable_data.sources import open_tokens

ROOT = Path(__file__).parents[2]
VARYING = r"loss|discarded|updates|rows|tokens|interrupted  |control  "
"""Lines of the demo's table that are measured, or depend on the texts of this Python's standard library."""
DEMO = [sys.executable, "-m", "resumable_data", "demo"]


def test_script_is_short() -> None:
    """What a user would copy has fewer than 120 lines."""
    script = find_script()
    assert script == ROOT / "docs/examples/train_bytes.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) < 120


def test_readme_names_both_commands() -> None:
    """The first lines of the README say how to see the demo and how to run the tests."""
    opening = (ROOT / "README.md").read_text(encoding="utf-8").partition("## ")[0]
    assert re.findall(r"^make \w+", opening, re.MULTILINE) == ["make demo", "make test"]


@pytest.mark.slow
def test_script_killed_on_two_processes_goes_on_with_one(tmp_path: Path) -> None:
    """A process killed in mid-update costs the work since the last checkpoint and nothing else."""
    tokens, built = build_corpus(tmp_path, 16_000)
    job = Job(script=find_script(), folder=tmp_path, tokens=tokens, num_epochs=1, checkpoint_every=2)
    losses = run_stages(job, "run", [Stage(2, Kill(rank=1, update=3)), Stage(1)], Progress())
    outcome = read_outcome(tmp_path / "run", tokens=tokens, stages=[2, 1], losses=losses)
    report, place = outcome.ledger, outcome.cursor.packed
    assert sorted(losses) == list(range(report.updates))
    assert place
    assert (place.epoch, place.documents, place.tokens) == (1, built.documents, built.tokens)
    assert (report.verdict, report.replayed.high, report.omitted.high) == ("proven", 0, 0)
    assert outcome.proof.verdict == "proven"
    killed, resumed = report.attempts
    assert (killed.num_replicas, resumed.num_replicas) == (2, 1)
    assert killed.discarded.low > 0
    assert resumed.discarded.high == 0


def test_script_alone_says_how_to_make_a_corpus(tmp_path: Path) -> None:
    """Without tokens the script ends with the command that makes them."""
    command = [sys.executable, str(find_script()), "--tokens", str(tmp_path / "corpus"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"resumable-data tokens build *.txt -o {tmp_path / 'corpus'}\n" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("num_bytes", [1_000, 16_000])
def test_corpus_is_the_text(num_bytes: int, tmp_path: Path) -> None:
    """The demo's tokens are the bytes of its text, the blank lines between documents left out."""
    tokens, built = build_corpus(tmp_path, num_bytes)
    source = open_tokens(tokens)
    documents = [source.read(one, 0, int(length)) for one, length in enumerate(source.lengths(np.arange(len(source))))]
    text = (tmp_path / "corpus.txt").read_bytes()
    assert len(text) == num_bytes
    assert built.documents == len(documents) > 1
    assert all(document[-1] == 256 for document in documents)
    joined = b"".join(document[:-1].astype(np.uint8).tobytes() for document in documents)
    assert b"".join(joined.split()) == b"".join(text.split())


def test_failing_script_is_shown_with_its_last_lines(tmp_path: Path) -> None:
    """When the training script fails, the demo says why in the script's own words, not in torchrun's."""
    script = tmp_path / "script.py"
    script.write_text("raise RuntimeError('no such corpus')\n", encoding="utf-8")
    job = Job(script=script, folder=tmp_path, tokens=tmp_path / "corpus")
    with pytest.raises(DemoError, match=r"RuntimeError: no such corpus\Z"):
        run_stages(job, "run", [Stage(1)], Progress())


@pytest.mark.slow
def test_demo_proves_what_the_readme_shows() -> None:
    """The demo holds, and prints the lines of the README, but for what is measured or another Python's library."""
    done = subprocess.run(DEMO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    table = done.stdout.partition("] done\n\n")[2]
    assert len(table.splitlines()) > 10
    same, varying = (
        [line for line in table.splitlines() if bool(re.search(VARYING, line)) is varies] for varies in (False, True)
    )
    assert set(same) <= set(shown.splitlines())
    assert {_without_numbers(line) for line in varying} <= set(map(_without_numbers, shown.splitlines()))


def _without_numbers(line: str) -> str:
    return re.sub(r" *\b[0-9a-f]*\d[0-9a-f.-]*", " #", line)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_demo_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, or a request to end, ends training processes and their workers too."""
    demo = subprocess.Popen([*DEMO, "--keep", str(tmp_path / "kept")], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    with demo:
        assert any("updates, loss" in line for line in demo.stdout)
        assert str(tmp_path) in _processes()
        demo.send_signal(number)
        assert demo.wait(timeout=60) == 130
    assert str(tmp_path) not in _processes()


def _processes() -> str:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("is_file", [True, False])
def test_directory_in_use_is_refused(is_file: bool, tmp_path: Path) -> None:
    """The demo does not resume from, or write into, what it did not make."""
    path = tmp_path / "file" if is_file else tmp_path
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    done = subprocess.run([*DEMO, "--keep", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected a new or empty directory" in done.stderr

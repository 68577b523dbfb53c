"""``resumable-data demo``: train on 4 processes, kill, resume on 3, kill, finish on 2, and prove the data exact."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.cli.demo_corpus import build_corpus
from resumable_data.cli.demo_report import read_outcome, report
from resumable_data.cli.demo_run import DemoError, Job, Kill, Progress, Stage, run_stages
from resumable_data.cli.signals import ENDED_BY_USER, signals_interrupt
from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.cli.demo_report import Outcome

SCRIPT_NAME = "train_bytes.py"
INTERRUPTED_RUN = (Stage(4, Kill(rank=2, update=13)), Stage(3, Kill(rank=0, update=29)), Stage(2))
CONTROL_RUN = (Stage(4),)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "demo",
        help="train on 4 processes, kill, resume on 3, kill, finish on 2, and prove the data exact",
        description="Runs docs/examples/train_bytes.py with torchrun on this machine's CPUs: kills it twice in "
        "mid-update and resumes it on fewer processes, then runs it again without interruption, and compares.",
        epilog="exit codes: 0 all of it holds, 1 something does not and a sentence says what, 2 usage",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR, new or empty, and leave it there")


def run(args: argparse.Namespace) -> int:
    """Run the demo, print its table, and return the exit code."""
    with _directory(args.keep) as folder, signals_interrupt():
        say = Progress()
        try:
            job = Job(script=find_script(), folder=folder, tokens=_build_corpus(folder, say))
            interrupted, control = (
                _run_one(job, name, stages, say)
                for name, stages in (("interrupted", INTERRUPTED_RUN), ("control", CONTROL_RUN))
            )
        except KeyboardInterrupt:
            print("stopped; the demo's processes were ended", file=sys.stderr)
            return ENDED_BY_USER
    say(f"done{f'; checkpoints, ledgers and output are in {folder}' if args.keep else ''}\n")
    failures = report(interrupted, control)
    for failure in failures:
        print(f"\nFAILED: {failure}")
    return 1 if failures else 0


def _build_corpus(folder: Path, say: Progress) -> Path:
    tokens, built = build_corpus(folder)
    say(f"{built.documents} documents, {built.tokens} tokens, of the standard library's packages, as by the command")
    say("  resumable-data tokens build corpus.txt -o corpus --split-on blank-lines")
    return tokens


def _run_one(job: Job, name: str, stages: tuple[Stage, ...], say: Progress) -> Outcome:
    losses = run_stages(job, name, stages, say)
    out, num_processes = job.folder / name, [stage.num_processes for stage in stages]
    return read_outcome(out, tokens=job.tokens, stages=num_processes, losses=losses)


def find_script() -> Path:
    """The training script: in the installed package, or in the documentation beside it.

    Raises:
        DemoError: It is in neither.
    """
    package = Path(__file__).parents[1]
    places = package / "_examples" / SCRIPT_NAME, package.parent / "docs" / "examples" / SCRIPT_NAME
    for place in places:
        if place.is_file():
            return place
    raise DemoError(f"expected the training script at {places[0]} or {places[1]}, found neither; reinstall the package")


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """The directory to work in.

    Raises:
        UsageError: The one to keep has something in it.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="resumable-data-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(
            f"--keep: expected a new or empty directory, found something in {keep}; the demo would resume from it. "
            "Name another."
        )
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()

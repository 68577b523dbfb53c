"""Run the suite behind docs/benchmarks.md: one question after another, each in a process of its own.

Results lie in benchmarks/results/, a file for each question, where a run keeps what it could not measure. The other
files in this folder are for work on one part of the package, and are run by their own names.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"


class Step(NamedTuple):
    """A question of the suite.

    Attributes:
        question: The module.
        short: Its arguments in the short form.
        full: In the full one.
        streaming: In which forms it is run in the environment of MosaicML Streaming too: "both", "full" or neither.
    """

    question: str
    short: str
    full: str
    streaming: str = ""

    def has_part(self, *, is_full: bool) -> bool:
        """Whether it is run in the environment of MosaicML Streaming."""
        return self.streaming == "both" or (is_full and self.streaming == "full")


SUITE = (
    Step("data_after_a_move", "--short", "", "both"),
    Step("remap_cost", "--short --repeats 1", "--repeats 1", "full"),
    Step("first_batch", "--short --repeats 1", "", "full"),
    Step("resume_cost", "--repeats 3", ""),
    Step("order_speed", "--repeats 3 --clock cpu", "--clock cpu"),
    Step("loader_overhead", "--short --repeats 3", ""),
    Step("packed_loader", "--short", "", "both"),
    Step("packed_gather", "--repeats 40", ""),
    Step("checkpoint_state", "--short", ""),
    Step("checkpoint_digest", "--repeats 3 --mebibytes 64 --clock cpu", "--clock cpu"),
    Step("ledger_audit", "--repeats 2 --samples 4000000", "--memory"),
    Step("end_to_end", "--short", ""),
)


def run(step: Step, *, is_full: bool, is_streaming: bool) -> bool:
    """One question, merged into its file; whether it was answered."""
    command = [sys.executable, "-m", f"benchmarks.{step.question}", *(step.full if is_full else step.short).split()]
    if is_streaming:
        command += ["--only", "Streaming"]
    command += ["--merge", "--output", str(RESULTS / f"{step.question}.json")]
    print(f"benchmarks.{step.question}", file=sys.stderr, flush=True)
    start = time.monotonic()
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    print(f"  {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return done.returncode == 0


def main() -> int:
    """Run the suite; the exit code is 1 when a question failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", nargs="*", help="some of the questions; all when none is named")
    parser.add_argument("--full", action="store_true", help="all cases and repeats: about an hour")
    parser.add_argument("--streaming", action="store_true", help="what MosaicML Streaming has a part in, and it alone")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    chosen = [step for step in SUITE if step.question in (arguments.questions or [one.question for one in SUITE])]
    if arguments.streaming:
        chosen = [step for step in chosen if step.has_part(is_full=arguments.full)]
    failed = [
        step.question for step in chosen if not run(step, is_full=arguments.full, is_streaming=arguments.streaming)
    ]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

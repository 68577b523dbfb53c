"""The command ``resumable-data plan``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from resumable_data.cli import main
from resumable_data.cursor import Cursor, Recipe, encode_cursor
from resumable_data.order import Shuffle

MOVE = """\
8 to 10 ranks, at the end of any update: exact, 0 samples replayed, 0 omitted

full update, 256 rows          now        new
  ranks                        8          10
  microbatch, at most          2          2
  accumulation steps           16         13
  stretches over all ranks     16 of 16   12 of 20, 1 of 16
  microbatches, busiest rank   16 of 2    13 of 2
  ranks idle in the last one   0          0
  rows of a rank               32         25 to 26
  filler rows                  0          0
  idle share of rank time      0.0 %      1.5 %
  loss scale                   0.03125    0.0390625
  even                         yes        no

last update, 192 rows          now        new
  accumulation steps           12         10
  stretches over all ranks     12 of 16   9 of 20, 1 of 12
  microbatches, busiest rank   12 of 2    10 of 2
  ranks idle in the last one   0          0

  place              update 0, at offset 0 of epoch 0
  left in the epoch  3,907 updates of 1,000,000 samples
  left in the run    11,719 updates of 3 epochs

changes with the move
  random streams    one per rank: 8 saved, 10 needed
  random numbers    dropout and augmentation: 25 to 26 rows per rank and update, before 32
  sums              gradients are added in another order: equal up to rounding, not bit for bit
  batch statistics  BatchNorm, router load: over 1 to 2 rows, before 2 rows
  work              26 rows on the busiest rank, before 32; idle 1.5 %, before 0.0 %

stays as it is
  order of samples, samples per update, schedules that count updates, weights in the loss

even layouts nearby
  ranks              2  4  8  16  32  64
  batch on 10 ranks  240  260
"""

ONE_RANK_SET = """\
3 ranks, 10 rows per update

full update, 10 rows
  ranks                        3
  microbatch, at most          1
  accumulation steps           4
  stretches over all ranks     3 of 3, 1 of 1
  microbatches, busiest rank   4 of 1
  ranks idle in the last one   2
  rows of a rank               3 to 4
  filler rows                  2
  idle share of rank time      16.7 %
  loss scale                   0.3
  even                         no

  place              update 0, at offset 0 of epoch 0
  left in the epoch  100 updates of 1,000 samples
  left in the run    no end

even layouts nearby
  ranks             1  2  5  10
  batch on 3 ranks  9  12

to know
  RD603 warning: filler rows enter batch statistics
        full update on 3 ranks: expected no filler rows, found 2 beside 10 rows.
        Losses summed with the weights ignore them. BatchNorm and router statistics do not: mask
        them by microbatch.weights there, or take an even layout.
"""


def arguments(**flags: object) -> list[str]:
    """Command-line arguments; True for a flag without a value, None for a flag left out."""
    words = ["plan"]
    for name, value in flags.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def plan(capsys: pytest.CaptureFixture[str], **flags: object) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    code = main(arguments(**flags))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


RUN: dict[str, object] = {"samples": 1_000_000, "global_batch": 256, "microbatch": 2, "num_replicas": 8}


def plan_json(capsys: pytest.CaptureFixture[str], **flags: object) -> dict[str, Any]:
    code, out, err = plan(capsys, json=True, **flags)
    assert (code, err) == (0, "")
    report: dict[str, Any] = json.loads(out)
    return report


def test_move_is_printed_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    """256 rows move from 8 to 10 ranks: both layouts, the rest of the run, changes and alternatives."""
    assert plan(capsys, **RUN, to=10, epochs=3) == (0, MOVE, "")


def test_one_rank_set_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --to the report is about today's ranks, and says that two of three run filler."""
    flags = {"samples": 1000, "global_batch": 10, "microbatch": 1, "num_replicas": 3}
    assert plan(capsys, **flags) == (0, ONE_RANK_SET, "")


def test_json_has_both_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON report carries the schema's version, the verdict, layouts and findings for programs."""
    report = plan_json(capsys, **{**RUN, "global_batch": 512, "microbatch": 8, "num_replicas": 64, "to": 10})
    assert (report["schema_version"], report["verdict"]) == (1, "exact")
    now, to = report["updates"][0]["now"], report["updates"][0]["to"]
    assert (now["num_replicas"], now["accumulation_steps"]) == (64, 1)
    assert (to["accumulation_steps"], to["max_rows"]) == (7, 52)
    assert [finding["code"] for finding in report["findings"]] == ["RD601"]
    assert report["unchanged"]


def test_new_microbatch_alone_is_a_move(capsys: pytest.CaptureFixture[str]) -> None:
    """--to-microbatch without --to keeps the ranks and changes what each holds."""
    report = plan_json(capsys, **RUN, to_microbatch=4)
    assert report["request"]["to"] == {"num_replicas": 8, "microbatch": 4}
    assert [change["what"] for change in report["changes"]] == ["sums", "batch statistics", "work"]


def test_phase_that_is_no_boundary_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 says that no run can be moved there; the boundaries nearby are named."""
    code, out, _ = plan(capsys, **RUN, to=10, phase=47)
    assert code == 1
    assert "47 rows into the update: not exact" in out
    assert "expected 32 or 48 rows accumulated" in out
    assert plan(capsys, **RUN, to=10, phase=48)[0] == 0


@pytest.fixture
def cursor() -> Cursor:
    recipe = Recipe(order=Shuffle(1000, seed=3).describe(), global_batch=10, tail="short")
    return Cursor(recipe=recipe, run_id="r", applied=120, skipped=2, samples=1220, epoch=1, offset=220)


@pytest.mark.parametrize("form", ["json", "tensor"])
def test_cursor_gives_the_run_and_the_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cursor: Cursor, form: str
) -> None:
    """With --cursor the run's numbers and its place need not be typed; flags that agree are accepted."""
    path = tmp_path / "cursor"
    path.write_bytes(cursor.to_json() if form == "json" else encode_cursor(cursor))
    report = plan_json(capsys, cursor=path, samples=1000, microbatch=1, num_replicas=4, to=3, epochs=2)
    assert report["request"]["schedule"] == {
        "length": 1000,
        "global_batch": 10,
        "tail": "short",
        "epochs": 2,
        "num_replicas": 1,
    }
    assert (report["request"]["update"], report["position"]) == (122, 1220)
    assert report["updates_left"] == report["updates_left_in_epoch"] == 78


@pytest.mark.parametrize(("flag", "value"), [("samples", 999), ("global_batch", 12), ("tail", "carry")])
def test_flag_that_contradicts_the_cursor_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cursor: Cursor, flag: str, value: object
) -> None:
    """A plan for another run than the cursor's is refused, naming the flag and both values."""
    path = tmp_path / "cursor.json"
    path.write_bytes(cursor.to_json())
    code, out, err = plan(capsys, cursor=path, microbatch=1, num_replicas=4, **{flag: value})
    assert (code, out) == (2, "")
    assert f"--{flag.replace('_', '-')} {value} contradicts the cursor" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"samples": 0}, "expected an integer from 1"),
        ({"samples": "many"}, "got 'many'"),
        ({"samples": None}, "expected --samples"),
        ({"samples": None, "global_batch": None}, "--samples and --global-batch, or --cursor"),
        ({"global_batch": -1}, "expected an integer from 1"),
        ({"num_replicas": 0}, "expected an integer from 1"),
        ({"num_replicas": None}, "--num-replicas"),
        ({"microbatch": "1.5"}, "got '1.5'"),
        ({"to": 2**40}, "expected an integer from 1"),
        ({"tail": "round"}, "invalid choice: 'round'"),
        ({"epochs": 0}, "expected an integer from 1"),
        ({"epochs": 2**60}, "more positions than 64 bits count"),
        ({"phase": 256}, "phase must be in [0, 256)"),
        ({"phase": -1}, "expected an integer from 0"),
        ({"gradient_reduction": "max"}, "invalid choice: 'max'"),
        ({"samples": 10, "tail": "drop"}, "would drop all 10 samples"),
    ],
)
def test_nonsense_is_refused(capsys: pytest.CaptureFixture[str], flags: dict[str, object], message: str) -> None:
    """A wrong argument is exit code 2 and a message that names it; nothing is printed as if it were a plan."""
    code, out, err = plan(capsys, **{**RUN, **flags})
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1, 2]", b"\xff\xfe", b"x" * 4096, b" " * (2**20 + 1)])
def test_cursor_that_cannot_be_read_is_exit_code_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes | None
) -> None:
    """A missing, damaged or oversized cursor is unreadable input, told without a traceback."""
    path = tmp_path / "cursor.json"
    if content is not None:
        path.write_bytes(content)
    code, out, err = plan(capsys, cursor=path, microbatch=1, num_replicas=4)
    assert (code, out) == (3, "")
    assert "expected" in err


def test_a_million_ranks_are_planned_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Layouts are closed forms: a million ranks and a batch of a billion take no longer than ten and ten."""
    start = time.perf_counter()
    flags = {"samples": 10**12, "global_batch": 10**9, "microbatch": 8, "num_replicas": 10**6, "to": 999_999}
    report = plan_json(capsys, **flags, epochs=10**5)
    assert time.perf_counter() - start < 2
    assert report["updates_left"] == 10**8
    assert report["updates"][0]["to"]["max_rows"] == 1001


def test_largest_numbers_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """At the limits of the arguments nothing overflows, in text or in JSON."""
    flags = {"samples": 2**62, "global_batch": 2**62, "microbatch": 2**30, "num_replicas": 2**30, "to": 1}
    report = plan_json(capsys, **flags)
    assert report["updates"][0]["to"]["max_rows"] == 2**62
    assert plan(capsys, **flags)[0] == 0


def test_command_does_not_import_torch() -> None:
    """Planning starts without the second that importing torch takes."""
    code = (
        "import sys; from resumable_data.cli import main\n"
        f"assert main({arguments(**RUN, to=10)!r}) == 0\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "False"

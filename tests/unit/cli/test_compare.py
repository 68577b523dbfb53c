"""The `compare` command: reports, exit codes, pictures, and what goes wrong in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resumable_data.cli import main
from resumable_data.validation.findings import KINDS
from tests.unit.validation.tracing import another_launch, make_trace, scaled, write

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A control, its repeat, a good candidate on other ranks, and one that deviates."""
    control = make_trace()
    write(tmp_path / "control", control)
    write(tmp_path / "again", another_launch(control))
    write(tmp_path / "repeat", scaled(control, "loss", 1 + 1e-6))
    write(tmp_path / "good", scaled(make_trace(axes=(("dp", 2),), num_devices=2), "loss", 1 + 2e-6, start=19))
    write(tmp_path / "bad", scaled(control, "update_norm", 1.5, start=3))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["compare", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict comes first, then what was compared and a table; a finding has its remedy."""
    control, again, repeat = folder / "control", folder / "again", folder / "repeat"
    assert run(capsys, control, folder / "good", "--repeat", repeat, "--repeat", again) == (
        0,
        f"""\
PASS: the candidate does what the control did, within what the control varies by itself

  control      {control} (dp 4, float32)
  candidate    {folder / "good"} (dp 2, float32)
  repeats      2 of the control
  updates      20, 60 to 79
  throughput   4 and 8 samples/s per device, not judged

       quantity  first update  largest  at update    limit     from    noise
           loss       0.0e+00  2.0e-06         79  7.6e-06  repeats  1.0e-06
  gradient_norm       0.0e+00  0.0e+00         60  7.6e-06  repeats  0.0e+00
    update_norm       0.0e+00  0.0e+00         60  7.6e-06  repeats  0.0e+00
""",
    )
    code, text = run(capsys, control, folder / "bad", "--repeat", repeat)
    assert code == 1
    assert text.startswith("DEVIATES: the candidate does not do what the control did\n")
    assert "  moved first  update_norm, at update 63\n" in text
    assert "RD913 violation: update norms are further apart than the limit (17 updates)\n" in text
    assert f"  remedy    {KINDS['RD913'].remedy}\n" in text


def test_json_and_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON report has a schema version, the verdict and findings; limits and windows can be declared."""
    control, bad = folder / "control", folder / "bad"
    code, text = run(capsys, control, bad, "--json")
    report = json.loads(text)
    assert (code, report["schema_version"], report["verdict"]) == (1, 1, "deviates")
    assert report["first_excess"] == {"update": 63, "quantity": "update_norm"}
    assert {"code", "severity", "where", "expected", "found", "remedy"} <= report["findings"][0].keys()
    limits = ("--limit", "loss=1e-6", "--limit", "gradient_norm=1e-5")
    code, text = run(capsys, control, folder / "good", *limits, "--json")
    sources = [one["limit_source"] for one in json.loads(text)["quantities"]]
    assert (code, sources) == (1, ["given", "given", "rounding"])
    write(folder / "long", make_trace(0, 90))
    window = ("--first-update", "60", "--min-updates", "21", "--json")
    report = json.loads(run(capsys, folder / "long", folder / "good", *window)[1])
    assert (report["verdict"], report["first_update"], report["updates"]) == ("unproven", 60, 20)


def test_what_goes_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad limit is usage, 2; a missing or damaged trace is 3; both are told in one line."""
    control = folder / "control"
    for limit in ("loss=0.5", "loss", "los=1e-4", "loss=x"):
        assert run(capsys, control, control, "--limit", limit)[0] == 2
    assert run(capsys, control)[0] == 2
    code, text = run(capsys, control, folder / "none")
    assert (code, text.count("\n")) == (3, 1)
    contents = bytearray(control.read_bytes())
    contents[len(contents) // 2] ^= 1
    (folder / "damaged").write_bytes(contents)
    code, text = run(capsys, control, folder / "damaged")
    assert (code, text.count("\n")) == (3, 1)
    assert "damaged, line " in text


def test_plot_without_matplotlib(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib the error names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, text = run(capsys, folder / "control", folder / "good", "--plot", folder / "out.png")
    assert (code, "pip install 'resumable-data[plot]'" in text) == (2, True)
    assert not (folder / "out.png").exists()


class _Axes:
    """Takes down what is drawn."""

    def __init__(self, drawn: list[tuple[Any, ...]]) -> None:
        self._drawn = drawn

    def plot(self, x: Any, y: Any, style: str, label: str) -> None:
        self._drawn.append((label, list(x), len(y)))

    def axhline(self, y: float, **_: Any) -> None:
        self._drawn.append(("limit", y))

    def __getattr__(self, name: str) -> Any:
        assert name in {"set_title", "legend", "set_yscale", "set_xlabel", "set_ylabel"}
        return lambda *_: None


def test_plot(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every quantity is drawn for each trace, and under it the deviations with the limit."""
    drawn: list[tuple[Any, ...]] = []

    class Figure:
        def __init__(self, **_: Any) -> None:
            self.suptitle = lambda _: None

        def subplots(self, rows: int, columns: int, **_: Any) -> list[list[_Axes]]:
            return [[_Axes(drawn) for _ in range(columns)] for _ in range(rows)]

        def savefig(self, path: Path) -> None:
            Path(path).write_text("a picture")

    module = ModuleType("matplotlib.figure")
    module.Figure = Figure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", module)
    options = ("--repeat", folder / "repeat", "--plot", folder / "out.png")
    assert run(capsys, folder / "control", folder / "good", *options)[0] == 0
    assert (folder / "out.png").read_text() == "a picture"
    updates = list(range(60, 80))
    of_one = [("control", 1), ("candidate", 2), ("repeat 1", 2)]
    assert [one for one in drawn if one[0] != "limit"] == [
        (label, updates, 20) for _ in range(3) for label, times in of_one for _ in range(times)
    ]
    assert [one[1] for one in drawn if one[0] == "limit"] == [2.0**-17] * 3


def test_documentation_lists_all_kinds() -> None:
    """The table in docs/validation.md is the table in the code."""
    page = (DOCS / "validation.md").read_text(encoding="utf-8")
    for code, kind in KINDS.items():
        assert f"| {code} | {kind.severity} | {kind.title} | {kind.remedy} |" in page

"""``resumable-data checkpoint`` and ``audit --checkpoint``."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from resumable_data.checkpoint.manifest import read_manifest, write_manifest
from resumable_data.cli import main
from tests.checkpoints import DATA_FILE, add_manifest, flip, odd_state, save, trained_loader

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    for step in (3, 4):
        save(root / f"step-{step}", odd_state(step))
    add_manifest(root / "step-3", 3)
    return root


@pytest.fixture
def root(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "root")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code, text = run(capsys, *arguments, "--json")
    return code, json.loads(text)


def test_verify(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good checkpoint is sound with exit code 0, a damaged one is damaged with 1, and nothing at all is 3."""
    code, text = run(capsys, "checkpoint", "verify", root / "step-3")
    assert (code, text.splitlines()[0]) == (0, "SOUND: nothing is missing, cut or changed, as far as was looked")
    (root / "step-3" / DATA_FILE).unlink()
    code, report = run_json(capsys, "checkpoint", "verify", root / "step-3", "--level", "structure")
    assert (code, report["verdict"], report["schema_version"]) == (1, "damaged", 1)
    assert report["findings"][0]["code"] == "RD821"
    code, text = run(capsys, "checkpoint", "verify", root / "step-5")
    assert code == 3
    assert "found nothing" in text
    assert run(capsys, "checkpoint", "verify", root / "step-3", "--level", "deep")[0] == 2


def test_show(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys with shapes and sizes, totals by prefix, the cursor and the manifest are shown."""
    code, summary = run_json(capsys, "checkpoint", "show", root / "step-3")
    assert code == 0
    keys = {one["key"]: one for one in summary["keys"]}
    assert keys["model.half"] == {
        "key": "model.half",
        "dtype": "bfloat16",
        "shape": [3, 7],
        "num_bytes": 42,
        "chunks": 1,
        "digest": "",
    }
    assert {"prefix": "model", "keys": 3, "num_bytes": 80 + 20 + 42} in summary["prefixes"]
    assert summary["cursors"]["loader.resumable_data.cursor"]["applied"] == 3
    assert summary["manifest"]["update"] == 3
    code, text = run(capsys, "checkpoint", "show", root / "step-4")
    assert code == 0
    assert "no manifest" in text
    assert run(capsys, "checkpoint", "show", root)[0] == 3


def edit_manifest(path: Path, **changes: Any) -> None:
    manifest = read_manifest(path)
    assert manifest is not None
    write_manifest(path, msgspec.structs.replace(manifest, **changes))


def test_show_tells_where_a_run_goes_on(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint saved inside an update says so, and whether it has the gradients; so does its JSON."""
    path = root / "step-3"
    assert "saved inside" not in run(capsys, "checkpoint", "show", path)[1]
    edit_manifest(path, phase=6, rng="reseed", allowances=("global_batch", "no_manifest"))
    text = run(capsys, "checkpoint", "show", path)[1]
    assert "inside the update: 6 rows were given, without their gradients; a load goes on at the update's start" in text
    assert "random states: reseed\n    allowed at the load before: global_batch, no_manifest" in text
    edit_manifest(path, has_gradients=True)
    assert "6 rows were given, and their gradients are in it" in run(capsys, "checkpoint", "show", path)[1]
    manifest = run_json(capsys, "checkpoint", "show", path)[1]["manifest"]
    assert {name: manifest[name] for name in ("phase", "has_gradients", "rng", "allowances")} == {
        "phase": 6,
        "has_gradients": True,
        "rng": "reseed",
        "allowances": ["global_batch", "no_manifest"],
    }


def test_diff_of_manifests(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another phase is a difference; how a checkpoint came about is told, and is none."""
    a, b = root / "step-3", shutil.copytree(root / "step-3", tmp_path / "b")
    edit_manifest(b, rng="reseed", allowances=("dtype",), has_gradients=True)
    code, found = run_json(capsys, "checkpoint", "diff", a, b)
    assert (code, found["manifests"], [one["key"] for one in found["origins"]]) == (0, [], ["rng", "allowances"])
    assert f"  allowances\n    {a}: none\n    {b}: dtype\n" in run(capsys, "checkpoint", "diff", a, b)[1]
    edit_manifest(b, phase=6)
    code, found = run_json(capsys, "checkpoint", "diff", a, b)
    assert (code, found["manifests"]) == (1, [{"key": "phase", "a": "0", "b": "6"}])
    edit_manifest(a, phase=6)
    code, text = run(capsys, "checkpoint", "diff", a, b)
    assert code == 1
    assert f"  has_gradients\n    {a}: no\n    {b}: yes\n" in text


def test_latest_walks_by_numbers(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest has the largest number, and of each newer one that does not verify the reason is said."""
    assert run(capsys, "checkpoint", "latest", root) == (0, f"{root / 'step-4'}\n")
    shutil.copytree(root / "step-4", root / "step-10")
    (root / "step-10" / ".metadata").unlink()
    (root / "step-9").mkdir()
    (root / "step-11.tmp").mkdir()
    (root / "logs").mkdir()
    flip(root / "step-4" / DATA_FILE, os.path.getsize(root / "step-4" / DATA_FILE) // 2)
    code, report = run_json(capsys, "checkpoint", "latest", root)
    assert (code, report["path"]) == (0, str(root / "step-3"))
    assert [os.path.basename(one["path"]) for one in report["passed_over"]] == ["step-10", "step-9", "step-4"]
    assert "RD801" in report["passed_over"][0]["reason"]


def test_latest_at_a_lower_level(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lower level takes what only a higher one sees to be damaged."""
    data = (root / "step-4" / DATA_FILE).read_bytes()
    weight = odd_state(4)["model"]["weight"].numpy().tobytes()
    flip(root / "step-4" / DATA_FILE, data.index(weight))
    assert run(capsys, "checkpoint", "latest", root)[1].startswith(f"{root / 'step-3'}\n")
    assert run(capsys, "checkpoint", "latest", root, "--level", "directory")[1] == f"{root / 'step-4'}\n"


def test_latest_of_none(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where none verifies the exit code is 1; a checkpoint in place of the directory of all is an error."""
    (tmp_path / "empty" / "1").mkdir(parents=True)
    code, text = run(capsys, "checkpoint", "latest", tmp_path / "empty")
    assert code == 1
    assert "passed over" in text
    assert run(capsys, "checkpoint", "latest", tmp_path / "missing")[0] == 3
    assert run(capsys, "checkpoint", "latest", root / "step-3")[0] == 3


def test_diff(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same state saved twice is the same; another step differs, and the cursor's fields are named."""
    again = save(tmp_path / "again", odd_state(3))
    code, text = run(capsys, "checkpoint", "diff", root / "step-3", again)
    assert (code, text) == (0, "the same: 25 keys\n")
    code, found = run_json(capsys, "checkpoint", "diff", root / "step-3", root / "step-4")
    assert code == 1
    assert {"model.weight", "step", "transposed"} <= {one["key"] for one in found["differ"]}
    assert "uint16" not in {one["key"] for one in found["differ"]}
    assert {"loader.resumable_data.cursor: applied"} <= {one["key"] for one in found["cursors"]}


def test_diff_of_other_keys(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys of one side alone, other shapes and dtypes are named; a damaged checkpoint is not compared."""
    state = odd_state(3)
    del state["view"]
    state["new"] = torch.ones(1)
    state["scalar"] = torch.tensor(3.0, dtype=torch.float64)
    code, found = run_json(capsys, "checkpoint", "diff", root / "step-3", save(tmp_path / "other", state))
    assert (code, found["only_in_a"], found["only_in_b"]) == (1, ["view"], ["new"])
    (scalar,) = [one for one in found["differ"] if one["key"] == "scalar"]
    assert scalar["a"].startswith("float32 []")
    assert scalar["b"].startswith("float64 []")
    (root / "step-3" / DATA_FILE).unlink()
    code, text = run(capsys, "checkpoint", "diff", root / "step-3", root / "step-4")
    assert code == 3
    assert "RD821" in text


def test_audit_of_checkpoints(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checkpoints prove their own coverage, several at once; one without a cursor is an error."""
    code, report = run_json(capsys, "audit", "--checkpoint", root / "step-3")
    assert (code, report["verdict"], report["samples"]) == (0, "proven", 30)
    plain = save(tmp_path / "plain", {"weight": torch.ones(2)})
    code, text = run(capsys, "audit", "--checkpoint", plain)
    assert code == 3
    assert "no such tensor" in text
    assert run(capsys, "audit", "--checkpoint", root / "step-3", "--cursor", "file")[0] == 2


def test_audit_of_several_checkpoints(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several checkpoints are held to one run: whose steps agree is proven, two runs are a violation."""
    paths = [root / "step-4", root / "step-3"]
    several = [argument for path in paths for argument in ("--checkpoint", path)]
    code, text = run(capsys, "audit", *several)
    assert (code, text.splitlines()[0]) == (1, "VIOLATED: the checkpoints are not of one history")
    assert "RD408 violation: checkpoints of several runs" in text

    loader = trained_loader(4)
    again = save(tmp_path / "again", {"loader": loader.state_dict(), "other": loader.state_dict()})
    code, report = run_json(capsys, "audit", "--checkpoint", root / "step-4", "--checkpoint", again)
    assert (code, report["verdict"]) == (1, "unproven")
    first, second = report["reports"]
    assert (first["subject"], first["verdict"], first["samples"]) == ("checkpoints", "proven", 40)
    assert [one["proven"] for one in first["checkpoints"]] == [[[0, 40]], [[0, 40]]]
    assert [one["code"] for one in second["findings"]] == ["RD411"]

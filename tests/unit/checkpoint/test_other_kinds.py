"""Directories that are no checkpoint of DCP's own format are named for what they are, and never sound."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
import torch

import resumable_data as rd
from resumable_data.checkpoint.files.findings import KINDS
from resumable_data.checkpoint.files.sums import hash_checkpoint
from resumable_data.cli import main
from resumable_data.errors import CheckpointError
from tests.checkpoints import add_manifest, edited_metadata, odd_state, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LEVELS = ["structure", "directory", "payload"]


def write_safetensors(path: Path, first_row: int = 0) -> Path:
    """A file of one tensor, (2, 4) float32, with what DCP's writer adds of its place in the whole one."""
    place = {"weight": {"saved_offsets": [first_row, 0]}}
    header = json.dumps(
        {
            "__metadata__": {"format": "pt", "DCP_SHARDING_INFO": json.dumps(place)},
            "weight": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
        }
    ).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<8f", *range(8)))
    return path


def write_shards(path: Path, numbers: list[int]) -> Path:
    """What `HuggingFaceStorageWriter(save_distributed=True)` leaves: a file of each rank, and nothing else."""
    for number in numbers:
        write_safetensors(path / f"shard-{number:05d}-model-00001-of-00001.safetensors", 2 * (number - 1))
    return path


def write_whole(path: Path) -> Path:
    """What it leaves without `save_distributed`: a file, and an index of keys."""
    file = write_safetensors(path / "model-00001-of-00001.safetensors")
    index = {"metadata": {"total_size": 32}, "weight_map": {"weight": file.name}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def write_consolidated(path: Path) -> Path:
    """What it leaves with `enable_consolidation`: the shards lie in a directory of their own."""
    write_whole(path)
    write_shards(path / "sharded", [1, 2])
    return path


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("write", [write_whole, write_consolidated, lambda path: write_shards(path, [1, 2, 3])])
def test_safetensors_are_never_sound(tmp_path: Path, level: str, write: Callable[[Path], Path]) -> None:
    """Whole or sharded, at every level, the report says what it is and that nothing vouches for it."""
    report = rd.verify_checkpoint(write(tmp_path / "saved"), level)
    assert (report.subject, report.verdict, report.exit_code) == ("safetensors", "unproven", 1)
    assert [one.code for one in report.findings] == ["RD805", "RD851"]
    assert "is         a checkpoint in files of safetensors: whether it is whole and unchanged" in report.to_text()


def test_lost_shard(tmp_path: Path) -> None:
    """A shard that is not there, which DCP loads without, is named where others have larger numbers."""
    found = rd.verify_checkpoint(write_shards(tmp_path / "saved", [1, 3])).findings[0].found
    assert found.endswith("the largest shard is number 3, and there are 2: number 2 is not there")
    assert "not there" not in rd.verify_checkpoint(write_shards(tmp_path / "all", [1, 2, 3])).findings[0].found


def test_list_of_sha256(tmp_path: Path) -> None:
    """A list made after the save finds what was lost since; with it, too, nothing says what the save should hold."""
    path = write_shards(tmp_path / "saved", [1, 2, 3])
    (tmp_path / "list").write_bytes(hash_checkpoint(path).to_list())
    report = rd.verify_checkpoint(path, sha256=tmp_path / "list")
    assert (report.verdict, report.sha256_files) == ("unproven", 3)
    assert "SHA-256    3 files are as listed" in report.to_text()
    (path / "shard-00002-model-00001-of-00001.safetensors").unlink()
    report = rd.verify_checkpoint(path, sha256=tmp_path / "list")
    assert (report.verdict, report.findings[0].code) == ("damaged", "RD863")


@pytest.mark.parametrize("level", LEVELS)
def test_metadata_that_names_safetensors(tmp_path: Path, level: str) -> None:
    """With .metadata over files of safetensors, whose sizes are right, it is not sound either."""
    path = save(tmp_path / "saved", {"weight": torch.zeros(2, 4)})
    (path / "__0_0.distcp").unlink()
    file = write_safetensors(path / "model-00001-of-00001.safetensors")
    with edited_metadata(path) as metadata:
        for place in metadata.storage_data.values():
            place.relative_path, place.offset, place.length = file.name, 0, file.stat().st_size
    report = rd.verify_checkpoint(path, level)
    assert (report.subject, report.verdict) == ("dcp", "unproven" if level == "structure" else "damaged")
    assert "RD805" in {one.code for one in report.findings}


def test_beside_a_checkpoint_of_dcp(tmp_path: Path) -> None:
    """Files of safetensors saved over a checkpoint of DCP are not vouched for by it; where a manifest tells, a note."""
    path = write_shards(save(tmp_path / "saved", odd_state()), [1])
    assert rd.verify_checkpoint(path).verdict == "unproven"
    add_manifest(path)
    report = rd.verify_checkpoint(path)
    assert (report.verdict, [one.code for one in report.findings]) == ("sound", ["RD827"])


@pytest.mark.parametrize("level", LEVELS)
def test_any_other_directory(tmp_path: Path, level: str) -> None:
    """A directory of something else is none of DCP's, not one that was damaged; an empty one may be."""
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "step-1").mkdir()
    report = rd.verify_checkpoint(tmp_path, level)
    assert (report.subject, report.verdict) == ("other", "unproven")
    assert [one.code for one in report.findings] == ["RD806", "RD851"]
    assert "is         no checkpoint of torch.distributed.checkpoint" in report.to_text()
    report = rd.verify_checkpoint(tmp_path / "step-1", level)
    assert (report.subject, report.verdict, report.findings[0].code) == ("dcp", "damaged", "RD801")


def test_neither_latest_nor_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are passed over in a search and refused at a load, whatever is allowed; `show` says what they are."""
    path = write_shards(tmp_path / "root" / "5", [1, 2])
    assert main(["checkpoint", "latest", str(path.parent)]) == 1
    assert "passed over" in capsys.readouterr().out
    assert rd.latest_checkpoint(path.parent, needs_manifest=False) is None
    with pytest.raises(CheckpointError, match="files of safetensors"):
        rd.load_checkpoint(path, {"weight": torch.zeros(4, 4)}, allow={"no_manifest", "no_checksums"})
    assert main(["checkpoint", "show", str(path)]) == 3
    assert KINDS["RD805"].title in capsys.readouterr().err

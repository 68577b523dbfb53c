"""Damage that a check of a checkpoint's files finds, by name, and what it leaves alone."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import pickle
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata

import resumable_data as rd
from resumable_data.checkpoint.files.findings import KINDS, Findings
from resumable_data.checkpoint.files.metadata import parse_metadata
from resumable_data.checkpoint.files.show import summarize_checkpoint
from resumable_data.checkpoint.files.structure import check_metadata
from resumable_data.checkpoint.manifest import MANIFEST_NAME
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.findings import SEVERITIES
from tests.checkpoints import (
    DATA_FILE,
    add_manifest,
    archive_of,
    edited_metadata,
    flip,
    odd_state,
    place_of,
    save,
    trained_loader,
)
from tests.files import overwrite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("saved") / "checkpoint", odd_state())


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "checkpoint")


def codes(path: Path, level: str = "payload") -> set[str]:
    """Codes found, but for the notes that every checkpoint of plain DCP gets."""
    return {finding.code for finding in rd.verify_checkpoint(path, level).findings} - {"RD851"}


def payload_at(path: Path, key: str) -> int:
    """Where the elements of a tensor begin in the data file, by the archive's own bytes."""
    info = place_of(path, key)
    data = (path / DATA_FILE).read_bytes()
    name = data.index(b"archive/data/0", info.offset) - 30
    return (
        name
        + 30
        + int.from_bytes(data[name + 26 : name + 28], "little")
        + int.from_bytes(data[name + 28 : name + 30], "little")
    )


@pytest.mark.parametrize("level", ["structure", "directory", "payload"])
def test_good_checkpoint_is_sound(saved: Path, level: str) -> None:
    """Every kind of tensor and object that DCP saves passes at every level, and the cursor in it is read."""
    report = rd.verify_checkpoint(saved, level)
    assert (report.verdict, report.exit_code, [one.code for one in report.findings]) == ("sound", 0, ["RD851"])
    cursor = trained_loader(3).cursor
    assert report.cursors == {"loader.resumable_data.cursor": cursor}
    assert report.checksums == ("not read" if level == "structure" else "recorded")


def test_payload_level_compares_all_contents(saved: Path) -> None:
    """The number of bytes compared is that of all records of all archives, counted by Python's own zip reader."""
    import io
    import zipfile

    metadata = pickle.loads((saved / ".metadata").read_bytes())
    data = (saved / DATA_FILE).read_bytes()
    total = 0
    for info in metadata.storage_data.values():
        with zipfile.ZipFile(io.BytesIO(data[info.offset : info.offset + info.length])) as archive:
            total += sum(record.file_size for record in archive.infolist())
    assert rd.verify_checkpoint(saved).checked_bytes == total


def delete_metadata(path: Path) -> None:
    (path / ".metadata").unlink()


def die_before_rename(path: Path) -> None:
    os.rename(path / ".metadata", path / ".metadata.tmp")


def cut_metadata(path: Path) -> None:
    overwrite(path / ".metadata", (path / ".metadata").read_bytes()[:1000])


def keep_metadata_of_ranks(path: Path) -> None:
    os.rename(path / ".metadata", path / "__0.metadata")


def delete_data(path: Path) -> None:
    (path / DATA_FILE).unlink()


def cut(path: Path, num_bytes: int) -> None:
    data = (path / DATA_FILE).read_bytes()
    overwrite(path / DATA_FILE, data[: len(data) - num_bytes])


def grow(path: Path) -> None:
    overwrite(path / DATA_FILE, (path / DATA_FILE).read_bytes() + b"garbage")


def directory_in_place_of_data(path: Path) -> None:
    delete_data(path)
    (path / DATA_FILE).mkdir()


def pipe_in_place_of_data(path: Path) -> None:
    delete_data(path)
    os.mkfifo(path / DATA_FILE)


def link_to_data(path: Path) -> None:
    os.rename(path / DATA_FILE, path.parent / "elsewhere")
    (path / DATA_FILE).symlink_to(path.parent / "elsewhere")


def leave_stray(path: Path) -> None:
    (path / "__3_0.distcp").write_bytes(b"left over")


@pytest.mark.parametrize(
    ("damage", "expected", "verdict"),
    [
        (delete_metadata, {"RD801"}, "damaged"),
        (die_before_rename, {"RD801"}, "damaged"),
        (cut_metadata, {"RD802"}, "damaged"),
        (keep_metadata_of_ranks, {"RD804"}, "unproven"),
        (delete_data, {"RD821"}, "damaged"),
        (lambda path: cut(path, 1), {"RD822"}, "damaged"),
        (lambda path: cut(path, 200), {"RD822"}, "damaged"),
        (lambda path: cut(path, 20_000), {"RD822"}, "damaged"),
        (grow, {"RD823"}, "damaged"),
        (directory_in_place_of_data, {"RD826"}, "damaged"),
        (pipe_in_place_of_data, {"RD826"}, "damaged"),
        (link_to_data, {"RD829"}, "sound"),
        (leave_stray, {"RD827"}, "sound"),
    ],
)
def test_damage_to_files(copy: Path, damage: Callable[[Path], None], expected: set[str], verdict: str) -> None:
    """What happens to files as a whole is found with no data file read, and at every level."""
    damage(copy)
    for level in ("structure", "directory", "payload"):
        report = rd.verify_checkpoint(copy, level)
        assert {one.code for one in report.findings} - {"RD851"} == expected
        assert report.verdict == verdict


def edit_tensor(name: str, **changes: Any) -> Callable[[Metadata], None]:
    def edit(metadata: Metadata) -> None:
        metadata.state_dict_metadata[name] = dataclasses.replace(metadata.state_dict_metadata[name], **changes)

    return edit


def edit_place(name: str, **changes: Any) -> Callable[[Metadata], None]:
    def edit(metadata: Metadata) -> None:
        index = next(index for index in metadata.storage_data if index.fqn == name)
        metadata.storage_data[index] = dataclasses.replace(metadata.storage_data[index], **changes)

    return edit


def chunks_of(metadata: Metadata, key: str) -> list[ChunkStorageMetadata]:
    tensor = metadata.state_dict_metadata[key]
    assert isinstance(tensor, TensorStorageMetadata)
    return tensor.chunks


def drop_key(metadata: Metadata) -> None:
    del metadata.state_dict_metadata["model.bias"]


def drop_entry(metadata: Metadata) -> None:
    metadata.storage_data.pop(next(index for index in metadata.storage_data if index.fqn == "model.bias"))


def drop_object_entry(metadata: Metadata) -> None:
    metadata.storage_data.pop(next(index for index in metadata.storage_data if index.fqn == "step"))


def drop_chunk(metadata: Metadata) -> None:
    chunks_of(metadata, "model.bias").clear()


def overlap_chunks(metadata: Metadata) -> None:
    chunks_of(metadata, "model.bias").append(ChunkStorageMetadata(torch.Size([3]), torch.Size([2])))


def move_chunk(metadata: Metadata) -> None:
    chunks_of(metadata, "model.bias")[0] = ChunkStorageMetadata(torch.Size([1]), torch.Size([5]))


def rename_place(metadata: Metadata) -> None:
    metadata.planner_data["model.bias"] = ("model", "other")


def swap_places(metadata: Metadata) -> None:
    by_key = {index.fqn: index for index in metadata.storage_data}
    first, second = by_key["model.weight"], by_key["model.half"]
    stored = metadata.storage_data
    stored[first], stored[second] = stored[second], stored[first]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (drop_key, {"RD815", "RD817"}),
        (drop_entry, {"RD814", "RD824"}),
        (drop_object_entry, {"RD814", "RD824"}),
        (drop_chunk, {"RD811", "RD815"}),
        (overlap_chunks, {"RD812", "RD814"}),
        (move_chunk, {"RD813", "RD814", "RD815"}),
        (rename_place, {"RD817"}),
        (edit_tensor("model.bias", size=torch.Size([6])), {"RD811"}),
        (edit_tensor("model.bias", size=torch.Size([2**62])), {"RD811"}),
        (edit_place("model.bias", relative_path="../" + DATA_FILE), {"RD824", "RD825"}),
        (edit_place("model.bias", relative_path="/etc/hosts"), {"RD824", "RD825"}),
        (edit_place("model.bias", relative_path=".."), {"RD824", "RD825"}),
        (edit_place("model.bias", relative_path="other.distcp"), {"RD821", "RD824"}),
        (edit_place("model.bias", length=2**62), {"RD822", "RD824"}),
        (edit_place("model.bias", offset=2**62), {"RD822", "RD824"}),
        (edit_place("model.bias", length=2**63), {"RD802"}),
        (edit_place("model.bias", offset=-1), {"RD802"}),
    ],
)
def test_damage_to_metadata(copy: Path, edit: Callable[[Metadata], None], expected: set[str]) -> None:
    """Metadata that contradicts itself or the sizes of files is found with no data file read."""
    with edited_metadata(copy) as metadata:
        edit(metadata)
    assert codes(copy, "structure") == expected


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (swap_places, {"RD833"}),
        (
            edit_tensor("model.half", properties=TensorProperties(torch.float16)),
            {"RD833"},
        ),
        (edit_place("model.half", transform_descriptors=["zstd"]), {"RD836"}),
    ],
)
def test_metadata_of_other_items(copy: Path, edit: Callable[[Metadata], None], expected: set[str]) -> None:
    """Metadata that is consistent and describes other items than there are is found in the archives' directories."""
    with edited_metadata(copy) as metadata:
        edit(metadata)
    assert codes(copy, "structure") == set()
    assert codes(copy, "directory") == expected


@pytest.mark.parametrize("key", ["model.weight", "large", "loader.resumable_data.cursor", "transposed", "float8"])
def test_flipped_bit_of_a_tensor(copy: Path, key: str) -> None:
    """One bit of one element is found by the checksum, with the tensor's key, the rank and the place."""
    flip(copy / DATA_FILE, payload_at(copy, key))
    assert "RD841" not in codes(copy, "directory")
    found = [one for one in rd.verify_checkpoint(copy).findings if one.code == "RD841"]
    assert [(one.key, one.file, one.rank, one.offset) for one in found] == [(key, DATA_FILE, 0, payload_at(copy, key))]


def test_flipped_bit_of_a_pickled_number(copy: Path) -> None:
    """A pickled integer that became another one is found."""
    info = place_of(copy, "step")
    at = (copy / DATA_FILE).read_bytes().index(b"\x80\x02K\x03.", info.offset) + 3
    flip(copy / DATA_FILE, at, 2)
    assert codes(copy) == {"RD841"}


def test_flipped_bit_of_a_cursor(copy: Path) -> None:
    """A damaged cursor is named as such beside its checksum."""
    flip(copy / DATA_FILE, payload_at(copy, "loader.resumable_data.cursor") + 40)
    assert codes(copy) == {"RD841", "RD861"}


@pytest.mark.parametrize("where", [b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x01\x02", b"PK\x07\x08"])
def test_flipped_bit_of_an_archive(copy: Path, where: bytes) -> None:
    """A header, directory or end of an archive that was changed is found with no contents read."""
    flip(copy / DATA_FILE, (copy / DATA_FILE).read_bytes().index(where, place_of(copy, "model.weight").offset))
    assert codes(copy, "directory") == {"RD831"}


@pytest.mark.parametrize("content", [b"\0", b"\xa5"])
def test_overwritten_shard(copy: Path, content: bytes) -> None:
    """A data file that was zeroed, or holds something else, is found: every item of it is no archive."""
    size = (copy / DATA_FILE).stat().st_size
    overwrite(copy / DATA_FILE, content * size)
    report = rd.verify_checkpoint(copy, "directory")
    assert {one.code for one in report.findings} - {"RD851"} == {"RD831"}
    metadata = pickle.loads((copy / ".metadata").read_bytes())
    assert sum(one.code == "RD831" for one in report.findings) + report.omitted.get("RD831", 0) == len(
        metadata.storage_data
    )


def test_checkpoint_without_checksums(tmp_path: Path) -> None:
    """Contents without recorded checksums are called unproven, not damaged, and only where they were to be checked."""
    torch.serialization.set_crc32_options(False)
    try:
        path = save(tmp_path / "checkpoint", odd_state())
    finally:
        torch.serialization.set_crc32_options(True)
    assert rd.verify_checkpoint(path, "directory").verdict == "sound"
    report = rd.verify_checkpoint(path)
    assert (report.verdict, report.checksums, report.exit_code) == ("unproven", "not recorded", 1)
    assert codes(path) == {"RD842"}


class Attack:
    """Pickles as a call of a shell."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def test_malicious_metadata_runs_nothing(copy: Path, tmp_path: Path) -> None:
    """A pickle that would run a command is refused by the command's name, and the command is not run."""
    marker = tmp_path / "ran"
    with edited_metadata(copy) as metadata:
        metadata.planner_data = Attack(marker)
    (finding,) = [one for one in rd.verify_checkpoint(copy).findings if one.code != "RD851"]
    assert (finding.code, finding.found) == ("RD803", "posix.system")
    assert not marker.exists()
    pickle.loads((copy / ".metadata").read_bytes())
    assert marker.exists()  # what loading it would have done


def test_malicious_object_runs_nothing(tmp_path: Path) -> None:
    """A pickled object that would run a command when it is loaded is named, and not run."""
    marker = tmp_path / "ran"
    path = save(tmp_path / "checkpoint", {"weight": torch.ones(2), "extra": Attack(marker)})
    marker.unlink(missing_ok=True)
    (finding,) = [one for one in rd.verify_checkpoint(path).findings if one.code != "RD851"]
    assert (finding.code, finding.severity, finding.key, finding.found) == ("RD835", "warning", "extra", "posix.system")
    assert not marker.exists()


def test_plain_objects_are_not_called_code(tmp_path: Path) -> None:
    """Containers, numbers, bytes, arrays and dates of the standard kinds are data, in either kind of file."""
    objects = {
        "set": {1, 2},
        "bytes": [b"", b"abc", bytearray(b"x")],
        "complex": 1j,
        "ordered": collections.OrderedDict(a=1),
        "array": np.arange(3),
        "scalar": np.float64(1.5),
        "path": pathlib.Path("a/b"),
        "size": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "pairs": {(1, 2): 3},
        "large": 2**100,
    }
    assert codes(save(tmp_path / "checkpoint", {"objects": list(objects.items())})) == set()
    torch.save(objects, tmp_path / "file.pt")
    assert codes(tmp_path / "file.pt") == {"RD871"}


def test_files_of_two_saves(tmp_path: Path) -> None:
    """Data of another step under this step's metadata is seen by the manifest, with no contents read."""
    old, new = save(tmp_path / "old", odd_state(3)), save(tmp_path / "new", odd_state(4))
    add_manifest(old)
    assert codes(old) == set()
    shutil.copy(new / DATA_FILE, old / DATA_FILE)
    assert (old / DATA_FILE).stat().st_size == (new / DATA_FILE).stat().st_size
    found = [one for one in rd.verify_checkpoint(old, "directory").findings if one.code == "RD856"]
    assert {"model.weight", "step", "loader.resumable_data.cursor"} <= {one.key for one in found}
    assert "RD862" in codes(old, "directory")
    (old / MANIFEST_NAME).unlink()
    assert codes(old) == set()  # nothing else can see it


def test_metadata_of_another_save(tmp_path: Path) -> None:
    """Metadata of another step beside this step's data is seen by the manifest at the lowest level."""
    old, new = save(tmp_path / "old", odd_state(3)), save(tmp_path / "new", odd_state(4))
    add_manifest(new)
    shutil.copy(old / ".metadata", new / ".metadata")
    assert codes(new, "structure") == {"RD853"}


def test_key_added_under_a_manifest(tmp_path: Path) -> None:
    """Keys, shapes and files that the manifest does not list are named."""
    state = odd_state()
    path = save(tmp_path / "checkpoint", state)
    add_manifest(path)
    state["model"]["bias"] = torch.randn(6)
    state["model"]["extra"] = torch.randn(1)
    shutil.copytree(save(tmp_path / "other", state), path, dirs_exist_ok=True)
    found = {one.key for one in rd.verify_checkpoint(path, "structure").findings if one.code == "RD854"}
    assert found == {"model.bias", "model.extra"}
    assert {"RD853", "RD854", "RD855"} <= codes(path, "structure")


def test_damaged_manifest(copy: Path) -> None:
    """A manifest that cannot be read is damage, not the absence of one."""
    add_manifest(copy)
    overwrite(copy / MANIFEST_NAME, b"{}")
    assert codes(copy) == {"RD852"}


def test_single_file(tmp_path: Path) -> None:
    """A file of torch.save is checked in the same way, and said to be of one process, with the memory it takes."""
    model = torch.nn.Linear(100, 100)
    path = tmp_path / "full.pt"
    torch.save({"model": model.state_dict(), "loader": trained_loader(3).state_dict(), "step": 3}, path)
    report = rd.verify_checkpoint(path)
    assert (report.subject, report.verdict, report.tensors) == ("torch.save", "sound", 4)
    assert [one.code for one in report.findings] == ["RD871"]
    assert report.host_bytes >= report.tensor_bytes == 4 * 10100 + 4096 + 65536
    assert report.cursors == {"loader.resumable_data.cursor": trained_loader(3).cursor}
    flip(path, path.read_bytes().index(model.weight.detach().numpy().tobytes()))
    assert rd.verify_checkpoint(path, "directory").verdict == "sound"
    assert rd.verify_checkpoint(path).verdict == "damaged"
    overwrite(path, path.read_bytes()[:-1])
    assert [one.code for one in rd.verify_checkpoint(path).findings] == ["RD831"]


def test_single_file_of_old(tmp_path: Path) -> None:
    """A file in the format before archives is not called damaged, and not sound either."""
    torch.save({"weight": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    report = rd.verify_checkpoint(tmp_path / "old.pt")
    assert (report.verdict, [one.code for one in report.findings]) == ("unproven", ["RD836"])


def test_nothing_to_check(tmp_path: Path) -> None:
    """A path that leads nowhere, or to a pipe, is an error; so is a level that does not exist."""
    with pytest.raises(CheckpointError, match="found nothing"):
        rd.verify_checkpoint(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe"):
        rd.verify_checkpoint(tmp_path / "pipe")
    with pytest.raises(UsageError, match="level"):
        rd.verify_checkpoint(tmp_path, "deep")


def flip_pickle(path: Path, key: str, offset: int, mask: int) -> None:
    """Change a byte of an item's pickle, counted from its beginning."""
    place = place_of(path, key)
    at = (path / DATA_FILE).read_bytes().index(b"\x80\x02", place.offset)
    flip(path / DATA_FILE, at + offset, mask)


def test_damaged_pickle_of_an_item(copy: Path) -> None:
    """A pickle that makes no sense is found without its checksum being computed."""
    flip_pickle(copy, "model.weight", 1, 0x40)
    assert codes(copy, "directory") == {"RD832"}
    assert codes(copy) == {"RD832", "RD841"}


def test_item_with_fewer_bytes_than_its_tensor(copy: Path) -> None:
    """A storage, or strides, that reach past the end of the record are found without reading the record."""
    pickled = archive_of(copy, "model.weight")
    at = pickled.index(b"K\x14t") - pickled.index(b"\x80\x02")  # 20 elements in its storage
    flip_pickle(copy, "model.weight", at + 1, 0x40)
    (finding,) = [one for one in rd.verify_checkpoint(copy, "directory").findings if one.code != "RD851"]
    assert (finding.code, finding.expected, finding.found) == ("RD834", "336 bytes in data/0", "80")


def test_temporary_file_is_noted(copy: Path) -> None:
    """What a save that died leaves beside a good checkpoint is a note."""
    (copy / ".metadata.tmp").write_bytes(b"")
    assert codes(copy, "structure") == {"RD828"}
    assert rd.verify_checkpoint(copy).verdict == "sound"


def test_tensor_that_is_cut_irregularly(copy: Path) -> None:
    """Forged chunks that no grid fits are not called a cover."""
    with edited_metadata(copy) as metadata:
        rng = np.random.default_rng(0)
        tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([2**61] * 8), [])
        for _ in range(200):
            offsets = torch.Size(rng.integers(0, 2**60, 8).tolist())
            tensor.chunks.append(ChunkStorageMetadata(offsets, torch.Size([1] * 8)))
        metadata.state_dict_metadata["model.bias"] = tensor
    assert {"RD818", "RD814"} <= codes(copy, "structure")


def test_entry_that_is_stored_twice(copy: Path) -> None:
    """Two storage entries for one chunk are found, which torch's own classes cannot even express."""
    data = (copy / ".metadata").read_bytes()
    metadata = parse_metadata(data)
    findings = Findings()
    check_metadata(metadata._replace(items=(*metadata.items, metadata.items[-1])), findings)
    assert [one.code for one in findings.found] == ["RD816"]


def test_many_findings_are_counted(copy: Path) -> None:
    """Of a finding that occurs everywhere the first fifty are listed, and the others are counted."""
    findings = Findings()
    for number in range(60):
        findings.add("RD841", key=str(number), expected="one", found="other")
    assert (len(findings.sorted()), findings.omitted["RD841"]) == (50, 10)


def test_large_tensor_is_checked_in_windows(tmp_path: Path) -> None:
    """A tensor of many windows is sound, and a flip in any of its bytes is found where it is."""
    path = save(tmp_path / "checkpoint", {"large": torch.zeros(5 * 2**20, dtype=torch.int32)})
    assert rd.verify_checkpoint(path).checked_bytes > 20 * 2**20
    for at in (0, 2**23 - 1, 2**23, 20 * 2**20 - 1):
        flip(path / DATA_FILE, payload_at(path, "large") + at)
        assert codes(path) == {"RD841"}
        flip(path / DATA_FILE, payload_at(path, "large") + at)


def test_documentation_lists_all_findings() -> None:
    """The table in docs/checkpoint.md is the table in the code."""
    page = (pathlib.Path(__file__).parents[3] / "docs" / "checkpoint.md").read_text()
    for code, kind in KINDS.items():
        assert (len(code), kind.severity in SEVERITIES, kind.remedy[-1]) == (5, True, ".")
        assert f"| {code} | {kind.severity} | {kind.title} | {kind.remedy} |" in page


def test_keys_of_another_planner_are_let_be(copy: Path) -> None:
    """Places that a planner names in its own way are not held against the flat keys."""
    with edited_metadata(copy) as metadata:
        metadata.planner_data = {key: ("other", key) for key in metadata.planner_data}
    assert codes(copy, "structure") == set()


def test_state_that_is_not_flattened(tmp_path: Path) -> None:
    """A checkpoint of a planner that keeps no places is sound."""
    path = tmp_path / "checkpoint"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
        dcp.save({"weight": torch.ones(2), "a": 1}, checkpoint_id=path, no_dist=True, planner=planner)
    assert codes(path) == set()


def test_several_files_of_one_rank(tmp_path: Path) -> None:
    """What several threads of one rank write, a file each, is sound; a file that is lost is found."""
    path = tmp_path / "checkpoint"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = dcp.FileSystemWriter(path, single_file_per_rank=False, thread_count=2)
        dcp.save({"a": torch.ones(2), "b": torch.ones(3)}, storage_writer=writer, no_dist=True)
    assert rd.verify_checkpoint(path).files == 2
    assert codes(path) == set()
    (path / "__0_1.distcp").unlink()
    assert codes(path) == {"RD821"}


def test_names_that_do_not_print(copy: Path) -> None:
    """Keys and files with line breaks and halves of characters in their names are escaped in every form of a report."""
    with edited_metadata(copy) as metadata:
        index = next(index for index in metadata.storage_data if index.fqn == "loader.resumable_data.cursor")
        for table in (metadata.state_dict_metadata, metadata.planner_data):
            table["\ud800\n.resumable_data.cursor"] = table.pop("loader.resumable_data.cursor")
        object.__setattr__(index, "fqn", "\ud800\n.resumable_data.cursor")
        edit_place("model.bias", relative_path="\ud800\n")(metadata)
    report = rd.verify_checkpoint(copy)
    assert list(report.cursors) == ["\\ud800\\n.resumable_data.cursor"]
    assert b"ud800" in report.to_json()
    assert "\n\n.res" not in report.to_text()
    assert b"ud800" in summarize_checkpoint(copy).to_json()


def test_digests_in_place_of_checksums(tmp_path: Path) -> None:
    """Where archives record no checksums, the manifest's digests tell a changed tensor; plain values stay unproven."""
    torch.serialization.set_crc32_options(False)
    try:
        rd.save_checkpoint(
            tmp_path / "a", {"values": {"w": torch.arange(4096.0).reshape(64, 64), "n": 3}}, checksums="digest"
        )
    finally:
        torch.serialization.set_crc32_options(True)
    (finding,) = rd.verify_checkpoint(tmp_path / "a").findings
    assert (finding.code, finding.found) == ("RD842", "none in 1")
    file = tmp_path / "a" / DATA_FILE
    place = place_of(tmp_path / "a", "values.w")
    flip(file, place.offset + place.length // 2)
    codes_found = [one.code for one in rd.verify_checkpoint(tmp_path / "a").findings]
    assert codes_found == ["RD843", "RD842"]
    assert rd.verify_checkpoint(tmp_path / "a").verdict == "damaged"

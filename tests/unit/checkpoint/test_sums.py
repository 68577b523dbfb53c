"""SHA-256 of whole files: lists that `sha256sum` and we read alike, and what a comparison with one finds."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resumable_data as rd
from resumable_data.checkpoint.files.findings import Findings
from resumable_data.checkpoint.files.sums import check_sums, hash_checkpoint
from resumable_data.cli import main
from resumable_data.errors import CheckpointError, UsageError
from tests.checkpoints import DATA_FILE, flip, save

needs_sha256sum = pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum of coreutils is not here")
NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: not {0, 47} & set(name) and name not in (b".", b"..", b"-")  # the last is standard input
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    import torch

    return save(tmp_path / "step-1", {"weight": torch.arange(1000), "step": 3})


@pytest.fixture
def listed(saved: Path, tmp_path: Path) -> Path:
    path = tmp_path / "list"
    path.write_bytes(hash_checkpoint(saved).to_list())
    return path


def found(path: Path, sums: Path) -> list[tuple[str, str]]:
    findings = Findings()
    check_sums(path, sums, findings)
    return [(one.code, one.file) for one in findings.found]


@needs_sha256sum
@settings(max_examples=20, deadline=None)
@given(names=st.sets(NAMES.filter(lambda name: b"\r" not in name), min_size=1, max_size=5))
def test_lists_are_those_of_sha256sum(names: set[bytes]) -> None:
    """Whatever bytes names have, the list is `sha256sum`'s byte for byte; but for CR, which old ones do not escape."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(name * 3)
        made = subprocess.run(["sha256sum", "--", *sorted(names)], cwd=folder, capture_output=True, check=True).stdout
        assert hash_checkpoint(folder).to_list() == made


@settings(max_examples=50, deadline=None)
@given(names=st.sets(NAMES, min_size=1, max_size=5), marker=st.sampled_from([b"  ", b" *"]), ending=st.booleans())
def test_lists_are_read_back(names: set[bytes], marker: bytes, ending: bool) -> None:
    """A list names all files with their hashes again, in text and binary form, with the line ends of any system."""
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as file:
        for name in names:
            Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(name)
        sums = hash_checkpoint(folder)
        assert {os.fsencode(one.name): one.sha256 for one in sums.files} == {
            name: hashlib.sha256(name).hexdigest() for name in names
        }
        lines = [re.sub(rb"^(\\?\w{64})  ", rb"\1" + marker, line) for line in sums.to_list().split(b"\n")]
        file.write((b"\r\n" if ending else b"\n").join(lines))
        file.flush()
        findings = Findings()
        assert check_sums(Path(folder), file.name, findings) == len(names)
        assert findings.found == []


def test_a_good_copy_is_as_listed(saved: Path, listed: Path, tmp_path: Path) -> None:
    """A copy of a checkpoint agrees with the list of the original, and the report counts its files."""
    copy = shutil.copytree(saved, tmp_path / "copy")
    report = rd.verify_checkpoint(copy, "structure", sha256=listed)
    assert (report.verdict, report.sha256_files) == ("sound", 2)
    assert "SHA-256    2 files are as listed" in report.to_text()
    assert rd.verify_checkpoint(copy, "structure").sha256_files is None


def test_what_differs_is_found(saved: Path, listed: Path) -> None:
    """Missing files, other contents, files that are not listed and directories in the place of files are told apart."""
    assert found(saved, listed) == []
    flip(saved / DATA_FILE, 0)
    assert found(saved, listed) == [("RD865", DATA_FILE)]
    (saved / DATA_FILE).unlink()
    (saved / "more").write_bytes(b"")
    assert found(saved, listed) == [("RD863", DATA_FILE), ("RD864", "more")]
    (saved / DATA_FILE).mkdir()
    assert found(saved, listed) == [("RD865", DATA_FILE), ("RD864", "more")]


def test_exit_codes(saved: Path, listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As listed is 0, any difference is 1, a malformed list is 3 and names the line."""
    command = ["checkpoint", "verify", str(saved), "--level", "structure", "--sha256", str(listed)]
    assert main(command) == 0
    (saved / "more").write_bytes(b"")
    capsys.readouterr()
    assert main([*command, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["verdict"], report["sha256_files"]) == ("unproven", 2)
    flip(saved / DATA_FILE, 0)
    assert main(command) == 1
    listed.write_bytes(listed.read_bytes() + b"what is this?\n")
    assert main(command) == 3
    assert "line 3: expected 64 hexadecimal digits" in capsys.readouterr().err


HASH = b"0" * 64


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", 1),
        (b"\n# nothing\n", 1),
        (HASH + b"  a\n" + HASH[1:] + b"  b\n", 2),
        (HASH + b" a\n", 1),
        (HASH + b"  \n", 1),
        (HASH + b"  a\n" + HASH.replace(b"0", b"1") + b"  a\n", 2),
        (HASH + b"  ../a\n", 1),
        (HASH + b"  ./../a\n", 1),
        (HASH + b"  /etc/hostname\n", 1),
        (HASH + b"  sub/a\n", 1),
        (HASH + b"  ..\n", 1),
        (HASH + b"  a\0b\n", 1),
        (b"\\" + HASH + b"  a\\x\n", 1),
        (b"\\" + HASH + b"  a\\\n", 1),
        (b"SHA256 (a) = " + HASH + b"\n", 1),
    ],
)
def test_malformed_lists(saved: Path, tmp_path: Path, content: bytes, line: int) -> None:
    """A list that is none, says two things of a file, or names files elsewhere is an error that names the line."""
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"list, line {line}: expected "):
        check_sums(saved, tmp_path / "list", Findings())


def test_no_list(saved: Path, tmp_path: Path) -> None:
    """No list, a pipe in its place, a single file, and directories in a checkpoint are errors in words."""
    with pytest.raises(CheckpointError, match="found nothing"):
        rd.verify_checkpoint(saved, sha256=tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="pipe"):
        rd.verify_checkpoint(saved, sha256=tmp_path / "pipe")
    with pytest.raises(UsageError, match="sha256sum -c does"):
        rd.verify_checkpoint(saved / DATA_FILE, sha256=tmp_path / "none")
    for path in (tmp_path / "none", saved / DATA_FILE):
        with pytest.raises(CheckpointError, match="expected the directory"):
            hash_checkpoint(path)
    (saved / "sub").mkdir()
    with pytest.raises(CheckpointError, match="a directory, pipe or device"):
        hash_checkpoint(saved)
    with pytest.raises(CheckpointError, match="found none"):
        hash_checkpoint(saved / "sub")
    (saved / "sub").rmdir()
    (saved / "link").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="leads nowhere"):
        hash_checkpoint(saved)


@needs_sha256sum
def test_the_list_may_lie_beside_the_files(saved: Path, tmp_path: Path) -> None:
    """A list that is redirected into the directory does not list itself, and is no file too many there."""
    command = [sys.executable, "-m", "resumable_data", "checkpoint", "show", str(saved), "--sha256"]
    with open(saved / "SHA256SUMS", "wb") as file:
        subprocess.run(command, stdout=file, check=True, timeout=60)
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=saved, check=True, capture_output=True)
    assert rd.verify_checkpoint(saved, "structure", sha256=saved / "SHA256SUMS").sha256_files == 2


def test_sums_as_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`show --sha256 --json` gives names, sizes and hashes."""
    assert main(["checkpoint", "show", str(saved), "--sha256", "--json"]) == 0
    sums = json.loads(capsys.readouterr().out)
    assert (sums["schema_version"], [one["name"] for one in sums["files"]]) == (1, [".metadata", DATA_FILE])
    data = (saved / DATA_FILE).read_bytes()
    assert sums["files"][1] == {
        "name": DATA_FILE,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }

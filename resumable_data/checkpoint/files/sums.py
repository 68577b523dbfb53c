"""SHA-256 of a checkpoint's whole files, as ``sha256sum`` lists them: for what is copied, archived or handed on.

A line is ``HASH  NAME``, and where the name has a backslash or a line break in it, these are escaped and a backslash
comes first. ``sha256sum -c``, run in the directory, reads the list; lists of ``sha256sum`` are read here.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resumable_data.checkpoint.files.opening import list_names, open_file, read_small
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Collection

    from resumable_data.checkpoint.files.findings import Findings

SCHEMA_VERSION = 1
MAX_LIST_BYTES = 2**26
"""A hundred thousand files take a tenth of it."""

_BLOCK_BYTES = 2**20
_LINE = re.compile(rb"(\\?)([0-9a-fA-F]{64}) [ *](.+)", re.DOTALL)
_ESCAPE = re.compile(rb"\\(.?)", re.DOTALL)
_ESCAPED = {b"\\": b"\\\\", b"\n": b"\\n", b"\r": b"\\r"}
_UNESCAPED = {b"\\": b"\\", b"n": b"\n", b"r": b"\r"}


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """A file: its name in the checkpoint's directory, its size [bytes], and the SHA-256 of all of it, hexadecimal."""

    name: str
    size: int
    sha256: str


class FileSums(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a checkpoint, sorted by the bytes of their names."""

    path: str
    files: tuple[FileSum, ...]
    schema_version: int = SCHEMA_VERSION

    def to_list(self) -> bytes:
        """The list that ``sha256sum -c`` reads."""
        return b"".join(_line(file) for file in self.files)

    def to_json(self) -> bytes:
        """The sums as JSON; in names, what does not print is escaped."""
        files = [msgspec.structs.replace(file, name=shown(file.name)) for file in self.files]
        return msgspec.json.encode(msgspec.structs.replace(self, files=tuple(files)))


def hash_checkpoint(path: str | os.PathLike[str], *, without: Collection[os.stat_result] = ()) -> FileSums:
    """The SHA-256 of every file in a checkpoint's directory. Reads all of them, a piece at a time.

    Args:
        path: The directory.
        without: What `os.stat` says of files that are left out, say of the list itself.

    Raises:
        CheckpointError: It is no directory, is empty, or holds something that is not a file.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(
            f"expected the directory of a checkpoint at {shown(path)}, found none. Nothing was read; of a single file "
            "sha256sum makes the list."
        )
    files = []
    for name in sorted(list_names(path), key=os.fsencode):
        if not _is_one_of(path / name, without):
            try:
                files.append(_hash_file(path / name))
            except FileNotFoundError:
                raise CheckpointError(
                    f"{shown(path / name)}: expected a file, found a link that leads nowhere, or that it was deleted "
                    "just now. No list was made: it would not vouch for all of the checkpoint. Try again, or remove it."
                ) from None
    if not files:
        raise CheckpointError(f"expected the files of a checkpoint in {shown(path)}, found none. No list was made.")
    return FileSums(path=shown(path), files=tuple(files))


def check_sums(path: Path, list_path: str | os.PathLike[str], findings: Findings) -> int:
    """Compare the files in a directory with a list of their SHA-256, and note what differs.

    Returns:
        How many of the files that are listed have the contents that are.

    Raises:
        UsageError: `path` is no directory.
        CheckpointError: The list cannot be read, or a line of it is malformed.
    """
    if not path.is_dir():
        raise UsageError(
            f"a list of SHA-256 is compared with the directory of a checkpoint, and {shown(path)} is none. Nothing was "
            "checked; of a single file, sha256sum -c does."
        )
    list_path = Path(list_path)
    listed = _read_list(list_path)
    left = set(list_names(path)) - {name for name in listed if "\0" not in name}
    good = sum(_is_as_listed(path / name, sha256, findings) for name, sha256 in listed.items())
    for name in sorted(left, key=os.fsencode):
        if not _is_one_of(path / name, [os.stat(list_path)]):
            findings.add("RD864", file=name, expected="files that are in the list", found="another")
    return good


def _is_as_listed(path: Path, sha256: str, findings: Findings) -> bool:
    try:
        found = _hash_file(path).sha256
    except FileNotFoundError:
        findings.add("RD863", file=path.name, expected=f"a file of SHA-256 {sha256}", found="none")
        return False
    except CheckpointError as error:
        findings.add("RD865", file=path.name, expected=f"a file of SHA-256 {sha256}", found=str(error))
        return False
    if found != sha256:
        findings.add("RD865", file=path.name, expected=f"SHA-256 {sha256}", found=found)
    return found == sha256


def _hash_file(path: Path) -> FileSum:
    digest = hashlib.sha256()
    with open_file(path) as file:
        for start in range(0, file.size, _BLOCK_BYTES):
            digest.update(file.read(start, min(_BLOCK_BYTES, file.size - start)))
        return FileSum(name=path.name, size=file.size, sha256=digest.hexdigest())


def _is_one_of(path: Path, files: Collection[os.stat_result]) -> bool:
    if not files:
        return False
    try:
        status = os.stat(path)
    except OSError:
        return False
    return any(os.path.samestat(status, file) for file in files)


def _line(file: FileSum) -> bytes:
    name = os.fsencode(file.name)
    escaped = re.sub(rb"[\\\n\r]", lambda match: _ESCAPED[match[0]], name)
    return (b"\\" if escaped != name else b"") + file.sha256.encode() + b"  " + escaped + b"\n"


def _read_list(path: Path) -> dict[str, str]:
    """File name to SHA-256; empty lines and lines that begin with ``#`` are passed over, as ``sha256sum -c`` does."""
    data = read_small(path, MAX_LIST_BYTES)
    if data is None:
        raise CheckpointError(
            f"expected a list of SHA-256 at {shown(path)}, found nothing. Nothing was checked; `checkpoint show DIR "
            "--sha256` makes one."
        )
    listed: dict[str, str] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.removesuffix(b"\r")
        if not line or line.startswith(b"#"):
            continue
        name, sha256 = _parse_line(line, path, number)
        if listed.setdefault(name, sha256) != sha256:
            raise _malformed(path, number, "each name once", f"{name} again, with another hash")
    if not listed:
        raise _malformed(path, 1, "lines of SHA-256 and file names", "none")
    return listed


def _parse_line(line: bytes, path: Path, number: int) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        found = line[:200].decode(errors="backslashreplace")
        raise _malformed(path, number, "64 hexadecimal digits, two spaces (or a space and *) and a file name", found)
    marker, sha256, name = match.groups()
    if marker:
        name = _ESCAPE.sub(lambda escape: _UNESCAPED.get(escape[1], b"\0"), name)
    text = os.fsdecode(name.removeprefix(b"./"))
    if "\0" in text or text in ("", ".", "..") or "/" in text or os.sep in text:
        expected = "the name of a file in the checkpoint's directory (make the list there, without paths in it)"
        raise _malformed(path, number, expected, os.fsdecode(match[3]))
    return text, sha256.decode().lower()


def _malformed(path: Path, number: int, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{shown(path)}, line {number}: expected {expected}, found {shown(found)}. Nothing was compared with the list; "
        "`checkpoint show DIR --sha256` makes one, and so does sha256sum."
    )

"""The manifest of a checkpoint: what its files hold, in one JSON file written last. Its presence is the commit mark.

The file lies inside the checkpoint's directory, as `MANIFEST_NAME`. Tools that know nothing of it read the checkpoint
as before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from resumable_data.checkpoint.files.opening import read_small
from resumable_data.cursor import Cursor
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown
from resumable_data.ledger.records import Mesh
from resumable_data.ledger.writer import sync_directory, write_all

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST_NAME = "resumable_data.manifest.json"
MANIFEST_VERSION = 1
MAX_MANIFEST_BYTES = 2**28
"""A million storage items take a quarter of it."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Checksum = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Hex64 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class TensorKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="tensor", tag_field="kind"):
    """A tensor of the state.

    Attributes:
        shape: Its global shape.
        dtype: As torch names it, without ``torch.``: ``"bfloat16"``.
        digest: The digest of its values, which does not depend on sharding; None where none was taken.
    """

    shape: tuple[Count, ...]
    dtype: str
    digest: Hex64 | None = None


class BytesKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="bytes", tag_field="kind"):
    """A Python object of the state, pickled."""


class FileEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A data file: its name in the checkpoint's directory, and its size [bytes]."""

    name: str
    size: Count


class ItemEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A storage item: one archive in a data file. ``.metadata`` says of which key it is.

    Attributes:
        file: Index into `Manifest.files`.
        offset: Where it begins [bytes].
        length: Its length [bytes].
        crc32: Of its payload, as `resumable_data.checkpoint.files.zips.Archive.payload_crc32` defines it; 0 where the
            archive records no checksums.
    """

    file: Count
    offset: Count
    length: Count
    crc32: Checksum


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ranks that saved.

    Attributes:
        world_size: All of them.
        dp_size: Those that read different samples.
        mesh: Axes of the device mesh, and which of them are data-parallel; empty without a mesh.
    """

    world_size: Count
    dp_size: Count
    mesh: Mesh = Mesh()


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint holds and how it came about.

    Attributes:
        version: `MANIFEST_VERSION`.
        package_version: Of resumable_data.
        torch_version: Of torch.
        python_version: Of Python.
        nonce: Drawn once for each save.
        created: When, in UTC, as ISO 8601.
        checksums: What says that the contents are right: ``"crc32"``, recorded by torch in the archives, or
            ``"digest"``, of each tensor, taken before the save.
        metadata_xxh3: xxh3_64 of the bytes of ``.metadata``.
        keys: Flat key of the state to what it is.
        files: Data files.
        items: Storage items, by file and offset.
        cursor: The loader's cursor as JSON, made by `Cursor.to_json`; ``null`` without a loader.
        topology: The ranks that saved.
        update: Index of the next update; None where nothing counts them.
        phase: Rows of the update at the cursor that the training loop was given; 0 at an update's border.
        has_gradients: Whether the state has those of the phase. Where not, they are discarded at a load: a run goes on
            at the update's start.
        run_xxh3: xxh3_64 of the bytes of the run manifest beside it; None where there is none.
        probe_xxh3: xxh3_64 of the bytes of the logits beside it, see `resumable_data.checkpoint.probe_file`; None where
            none were stored.
        rng: What becomes of random states on other ranks: the declared policy; empty where none are saved.
        allowances: What was allowed by name at the load that the run came from.
    """

    version: int = MANIFEST_VERSION
    package_version: str
    torch_version: str
    python_version: str
    nonce: Hex64
    created: str
    checksums: Literal["crc32", "digest"]
    metadata_xxh3: Hex64
    keys: dict[str, TensorKey | BytesKey]
    files: tuple[FileEntry, ...]
    items: tuple[ItemEntry, ...]
    cursor: msgspec.Raw = msgspec.Raw(b"null")
    topology: Topology
    update: Count | None = None
    phase: Count = 0
    has_gradients: bool = False
    run_xxh3: Hex64 | None = None
    probe_xxh3: Hex64 | None = None
    rng: str = ""
    allowances: tuple[str, ...] = ()

    def decode_cursor(self) -> Cursor | None:
        """The cursor.

        Raises:
            CorruptStateError: It is none of this version.
        """
        data = bytes(self.cursor)
        return None if data == b"null" else Cursor.from_json(data)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Manifest)


class _Versioned(msgspec.Struct):
    """What all versions have in common."""

    version: int


_VERSION_DECODER = msgspec.json.Decoder(_Versioned)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the checkpoint at `path`, whole or not at all, and durably.

    Its name appears when its contents, and all names that were in the directory before, are on the disk. That *other*
    files' contents are, is for whoever wrote them.

    Raises:
        CheckpointError: It would be larger than what is read.
        OSError: It cannot be written.
    """
    data = _ENCODER.encode(manifest)
    if len(data) > MAX_MANIFEST_BYTES:
        raise CheckpointError(
            f"the manifest of {shown(path)} takes {len(data):,} bytes, and {MAX_MANIFEST_BYTES:,} are allowed. The "
            "checkpoint has no commit mark. Save fewer keys or fewer chunks."
        )
    write_whole(path, MANIFEST_NAME, data)


def write_whole(path: Path, name: str, data: bytes) -> None:
    """Write a file into a directory, whole or not at all, and durably; names that were there before are durable first.

    Raises:
        OSError: It cannot be written.
    """
    unfinished = path / f".{name}-{os.urandom(8).hex()}.tmp"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
        sync_directory(path)  # names of data files must not be lost where the mark survives
        os.rename(unfinished, path / name)
    except BaseException:
        os.unlink(unfinished)
        raise
    finally:
        os.close(descriptor)
    sync_directory(path)


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of the checkpoint at `path`; None where it has none.

    Raises:
        CheckpointError: It cannot be read, or is not a manifest of this version.
    """
    file = path / MANIFEST_NAME
    data = read_small(file, MAX_MANIFEST_BYTES)
    if data is None:
        return None
    try:
        version = _VERSION_DECODER.decode(data).version
        if version != MANIFEST_VERSION:
            raise _bad(file, f"version {MANIFEST_VERSION}", f"version {version}")
        manifest = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _bad(file, "a manifest", f"something else ({error})") from None
    if any(item.file >= len(manifest.files) for item in manifest.items):
        raise _bad(file, "items of the files it lists", "the index of another file")
    return manifest


def _bad(file: Path, expected: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{shown(file)}: expected {expected}, found {shown(found)}. What the checkpoint should hold is not known. Load "
        "an earlier one, or read it with the version of resumable_data that wrote it."
    )

"""Digests of tensors, made of what files hold, a chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from resumable_data.checkpoint.digest import box_digest, combine, finish
from resumable_data.checkpoint.files.dtypes import ITEM_BYTES
from resumable_data.checkpoint.files.opening import open_file
from resumable_data.checkpoint.manifest import TensorKey
from resumable_data.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.checkpoint.files.archives import ItemContent
    from resumable_data.checkpoint.files.findings import Findings
    from resumable_data.checkpoint.files.metadata import Metadata
    from resumable_data.checkpoint.files.tensors import TensorLayout
    from resumable_data.checkpoint.manifest import Manifest

BoxSum = Callable[[bytes, "TensorLayout", Sequence[int], Sequence[int]], int]
"""The partial sum of a box: of its bytes, how they lie, the tensor's shape, and where the box begins."""


def sum_box(raw: bytes, layout: TensorLayout, shape: Sequence[int], offsets: Sequence[int]) -> int:
    """The partial sum of a box as it was saved."""
    return box_digest(raw, ITEM_BYTES[layout.dtype], shape, offsets, layout.shape, layout.strides)


def file_digest(
    path: Path, contents: Iterable[ItemContent], *, dtype: str, shape: Sequence[int], of_box: BoxSum = sum_box
) -> str:
    """The digest of a tensor in the files of a checkpoint.

    Args:
        path: The checkpoint.
        contents: Its chunks.
        dtype: The name that the digest is finished with.
        shape: Of the tensor.
        of_box: The partial sum of one chunk.

    Raises:
        CheckpointError: A chunk cannot be read, or lies outside the tensor.
    """
    total = 0
    for content in contents:
        layout, record, item = content.layout, content.record, content.item
        if layout is None or record is None or item.offsets is None:
            raise CheckpointError(f"{item.key} in {item.file}: expected a plain tensor, found something else")
        skipped = layout.offset * ITEM_BYTES[layout.dtype]
        with open_file(path / item.file) as file:
            raw = file.read(record.start + skipped, record.size - skipped)
        try:
            total = combine((total, of_box(raw, layout, shape, item.offsets)))
        except UsageError as error:
            raise CheckpointError(f"{item.key} in {item.file}: {error}") from None
    return finish(total, dtype, shape)


def check_digests(
    path: Path, manifest: Manifest, metadata: Metadata, contents: Sequence[ItemContent], findings: Findings
) -> int:
    """Hold tensors whose archives record no checksums against the manifest's digests.

    Returns:
        How many archives that covers.
    """
    digests = {key: what.digest for key, what in manifest.keys.items() if isinstance(what, TensorKey) and what.digest}
    unrecorded = {content.item.key for content in contents if not content.has_checksums}
    by_key: dict[str, list[ItemContent]] = {key: [] for key in unrecorded if key in digests and key in metadata.tensors}
    for content in contents:
        if content.item.key in by_key:
            by_key[content.item.key].append(content)
    for key, chunks in by_key.items():
        tensor = metadata.tensors[key]
        try:
            found = file_digest(path, chunks, dtype=tensor.dtype, shape=tensor.shape)
        except CheckpointError as error:
            found = str(error)
        if found != digests[key]:
            findings.add("RD843", key=key, expected=f"digest {digests[key]}", found=found)
    return sum(not content.has_checksums for chunks in by_key.values() for content in chunks)

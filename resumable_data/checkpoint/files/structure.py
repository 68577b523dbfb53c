"""Whether ``.metadata`` is consistent, and the data files are as long as it says. No data file is read."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from resumable_data.checkpoint.files.cover import check_cover
from resumable_data.checkpoint.files.metadata import METADATA_NAME
from resumable_data.checkpoint.files.opening import list_names
from resumable_data.checkpoint.files.other_kinds import SAFETENSORS_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from resumable_data.checkpoint.files.findings import Findings
    from resumable_data.checkpoint.files.metadata import Metadata, StorageItem, TensorMetadata

DATA_SUFFIX = ".distcp"


def check_metadata(metadata: Metadata, findings: Findings) -> None:
    """Chunks cover each tensor exactly, and each chunk and object is stored once and nothing else is."""
    stored: dict[str, list[StorageItem]] = {}
    for item in metadata.items:
        stored.setdefault(item.key, []).append(item)
    for key, tensor in metadata.tensors.items():
        _check_tensor(key, tensor, findings)
        _check_stored(key, [chunk.offsets for chunk in tensor.chunks], stored.pop(key, []), findings)
    for key in sorted(metadata.objects):
        _check_stored(key, [None], stored.pop(key, []), findings)
    for key, items in stored.items():
        findings.add(
            "RD815",
            file=items[0].file,
            key=key,
            expected="a tensor or object of this key",
            found="none",
            count=len(items),
        )
    _check_paths(metadata, findings)


def _check_tensor(key: str, tensor: TensorMetadata, findings: Findings) -> None:
    cover = check_cover(tensor.shape, tensor.chunks)
    shape = f"a tensor of shape {list(tensor.shape)}"
    if cover.outside is not None:
        offsets, sizes = cover.outside
        found = f"a chunk of sizes {list(sizes)} at {list(offsets)}"
        findings.add("RD813", key=key, expected=f"chunks in {shape}", found=found)
    if cover.hole is not None:
        found = f"none over the element at {list(cover.hole)}; {len(tensor.chunks)} chunks in all"
        findings.add("RD811", key=key, expected=f"chunks that cover {shape}", found=found)
    if cover.overlap is not None:
        found = f"several over the element at {list(cover.overlap)}"
        findings.add("RD812", key=key, expected=f"one chunk over each element of {shape}", found=found)
    if not cover.is_checked:
        findings.add("RD818", key=key, expected=f"a grid of chunks over {shape}", found=f"{len(tensor.chunks)} chunks")


def _check_stored(
    key: str, expected: Sequence[tuple[int, ...] | None], items: Sequence[StorageItem], findings: Findings
) -> None:
    """Each of the expected offsets has one item, and no item has others."""
    wanted = set(expected)
    if len(items) == len(wanted) and wanted == {item.offsets for item in items}:
        return
    found: dict[tuple[int, ...] | None, int] = {}
    for item in items:
        found[item.offsets] = found.get(item.offsets, 0) + 1
        if found[item.offsets] == 2:
            findings.add("RD816", file=item.file, key=key, expected=f"one entry{_at(item.offsets)}", found="several")
    for offsets in expected:
        if offsets not in found:
            findings.add("RD814", key=key, expected=f"a storage entry{_at(offsets)}", found="none")
    for item in items:
        if item.offsets not in wanted:
            findings.add("RD815", file=item.file, key=key, expected=f"no entry{_at(item.offsets)}", found="one")


def _at(offsets: tuple[int, ...] | None) -> str:
    return "" if offsets is None else f" for the chunk at {list(offsets)}"


def _check_paths(metadata: Metadata, findings: Findings) -> None:
    paths = metadata.paths or {}
    misspelt = {key: path for key, path in paths.items() if ".".join(map(str, path)) != key}
    if 2 * len(misspelt) >= len(paths):
        return  # another planner than DCP's own, which has its own names for places
    keys = metadata.tensors.keys() | metadata.objects
    for key in sorted(keys ^ paths.keys()):
        found = "only the one" if key in keys else "only the other"
        findings.add("RD817", key=key, expected="both the state's key and its place", found=found)
    for key, path in misspelt.items():
        findings.add("RD817", key=key, expected="a place that spells the key", found=".".join(map(str, path)))


def check_files(path: Path, metadata: Metadata, findings: Findings) -> dict[str, list[StorageItem]]:
    """Data files are there, regular, and filled by their items.

    Returns:
        File to its items by place, of those files whose items can be read.
    """
    by_file: dict[str, list[StorageItem]] = {}
    for item in metadata.items:
        by_file.setdefault(item.file, []).append(item)
    good: dict[str, list[StorageItem]] = {}
    for name, items in sorted(by_file.items()):
        items.sort(key=lambda item: (item.start, item.length))
        end = _check_tiles(name, items, findings)
        size = _file_size(path, name, len(items), findings)
        if size is None:
            continue
        if size != end:
            code = "RD822" if size < end else "RD823"
            late = sum(item.start + item.length > size for item in items)
            found = f"{size:,} bytes" + (f", {late} of {len(items)} items cut" if late else "")
            findings.add(
                code, file=name, offset=min(size, end), expected=f"{end:,} bytes", found=found, count=late or 1
            )
        whole = [item for item in items if item.start + item.length <= size]
        if whole:
            good[name] = whole
    _note_others(path, by_file.keys(), findings)
    return good


def _check_tiles(name: str, items: Sequence[StorageItem], findings: Findings) -> int:
    """Where the last item ends, having noted gaps and overlaps."""
    end = 0
    for item in items:
        if item.start != end:
            found = f"byte {item.start}, {'a gap' if item.start > end else 'an overlap'}"
            findings.add(
                "RD824", file=name, key=item.key, offset=end, expected=f"the next item at byte {end}", found=found
            )
        end = max(end, item.start + item.length)
    return end


def _file_size(path: Path, name: str, num_items: int, findings: Findings) -> int | None:
    """Size of a data file [bytes]; None where there is none to read."""
    if name in ("", ".", "..") or os.sep in name or "\0" in name:
        findings.add("RD825", file=name, expected="a plain name", found=repr(name), count=num_items)
        return None
    try:
        status = os.lstat(path / name)
        if stat.S_ISLNK(status.st_mode):
            findings.add("RD829", file=name, expected="a regular file", found="a link")
            status = os.stat(path / name)
    except FileNotFoundError:
        findings.add("RD821", file=name, expected=f"a file of {num_items} items", found="none", count=num_items)
        return None
    except (OSError, ValueError) as error:
        findings.add("RD826", file=name, expected="a data file", found=str(error), count=num_items)
        return None
    if not stat.S_ISREG(status.st_mode):
        found = "a directory, pipe or device"
        findings.add("RD826", file=name, expected="a regular file", found=found, count=num_items)
        return None
    return status.st_size


def _note_others(path: Path, named: Collection[str], findings: Findings) -> None:
    for entry in list_names(path):
        if entry.endswith(".tmp"):
            findings.add("RD828", file=entry, expected="none", found="one")
        elif (
            entry.endswith((DATA_SUFFIX, METADATA_NAME, SAFETENSORS_SUFFIX))
            and entry != METADATA_NAME
            and entry not in named
        ):
            findings.add("RD827", file=entry, expected="files that .metadata names", found="another")

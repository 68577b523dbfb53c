"""Directories that are no checkpoint of DCP's own format: what they are, and that nothing vouches for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from resumable_data.checkpoint.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resumable_data.checkpoint.files.findings import Findings

SAFETENSORS_SUFFIX = ".safetensors"
_SHARD = re.compile(r"shard-(\d{1,9})-.*\.safetensors", re.ASCII | re.DOTALL)
_EXPECTED = "files whose contents are recorded somewhere, as in .distcp files with .metadata"


def note_other_kind(names: Sequence[str], findings: Findings) -> bool:
    """Note what a directory without ``.metadata`` is; false where it may be what is left of a checkpoint of DCP.

    Args:
        names: All names in it, in order.
        findings: Where it is noted.
    """
    if not names or MANIFEST_NAME in names or any(name.endswith((".distcp", ".tmp", ".metadata")) for name in names):
        return False
    if not note_safetensors(names, findings):
        found = f"{len(names)} other entries, say {names[0]}"
        findings.add("RD806", expected=".metadata and .distcp files", found=found, count=len(names))
    return True


def note_safetensors(names: Iterable[str], findings: Findings) -> bool:
    """Note files of safetensors, as DCP's HuggingFaceStorageWriter leaves them; whether there are any."""
    files = sorted(name for name in names if name.endswith((SAFETENSORS_SUFFIX, SAFETENSORS_SUFFIX + ".index.json")))
    if not files:
        return False
    found = f"{len(files)} files of safetensors, say {files[0]}{_missing_numbers(files)}"
    findings.add("RD805", expected=_EXPECTED, found=found, count=len(files))
    return True


def _missing_numbers(files: Sequence[str]) -> str:
    """What numbers of shards are not there, below the largest one: of a rank that saved nothing, or of lost files."""
    numbers = {int(match[1]) for file in files if (match := _SHARD.fullmatch(file))}
    if not numbers or len(numbers) == max(numbers):
        return ""
    missing = next(number for number in range(1, max(numbers) + 1) if number not in numbers)
    return f"; the largest shard is number {max(numbers)}, and there are {len(numbers)}: number {missing} is not there"

"""Random states in a load: read and judged by all processes before the program is touched, given back after it."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from resumable_data.checkpoint.collective import gather_bytes, together
from resumable_data.checkpoint.files.opening import open_file
from resumable_data.checkpoint.random_layout import NUM_BYTES, Place, decode_states
from resumable_data.checkpoint.random_states import RandomStates, refused
from resumable_data.errors import CheckpointError, ResumableDataError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable_data.checkpoint.files.metadata import Metadata, StorageItem

_ITEM_BYTES = 4 * NUM_BYTES
_KEY = re.compile(r"\.rank\d{1,9}", re.ASCII)


class RandomRestore:
    """The random states of a program, where a checkpoint has some for it.

    Args:
        path: The checkpoint.
        parts: The program's `RandomStates` by name, at most one.
        metadata: Of the checkpoint.

    Attributes:
        names: Those of parts that the checkpoint has states for.
        keys: The keys of all processes' states under these names.
    """

    def __init__(self, path: Path, parts: Mapping[str, RandomStates], metadata: Metadata) -> None:
        self._path = path
        self._parts = {name: part for name, part in parts.items() if _keys(name, metadata)}
        self.names = set(self._parts)
        self.keys = {key for name in self.names for key in _keys(name, metadata)}
        self._items = {item.key: item for item in metadata.items if item.key in self.keys}
        self._states: dict[str, bytes] = {}
        self._change = ""

    def prepare(self) -> None:
        """Read this process's states, and agree on whether all can be given back. Collective; nothing is changed.

        Raises:
            CheckpointError: The states cannot be read, or are damaged.
            StateError: The processes are others than those that saved, and that is to be refused.
        """
        if self._parts:
            changes = [one.decode() for one in gather_bytes(together(self._read).encode())]
            self._change = next((one for one in changes if one), "")
            together(self._require_allowed)

    def finish(self) -> str:
        """Give the states back or seed the generators anew; what was done. Collective."""
        return together(self._restore) if self._parts else ""

    def _require_allowed(self) -> None:
        for part in self._parts.values():
            if self._change and part.on_change == "refuse":
                raise refused(self._change)

    def _restore(self) -> str:
        for part in self._parts.values():
            if self._change:
                part.reseed_after(self._change)
                return part.change
            part.restore(self._states)
        return "restored"

    def _read(self) -> str:
        """How this process differs from the one that saved its states; those of another one tell the ranks as well."""
        ((name, part),) = self._parts.items()
        item = self._items.get(f"{name}.{part.key}") or next(iter(self._items.values()), None)
        if item is None:
            raise CheckpointError(f"{shown(self._path)}: expected random states under {name!r}, found no item.")
        try:
            saved, self._states = _read_states(self._path / item.file, item)
            if saved.world_size != len(self.keys):
                raise CheckpointError(f"expected those of {saved.world_size} processes, found {len(self.keys)}.")
        except ResumableDataError as error:
            raise CheckpointError(
                f"{shown(self._path / item.file)}, {shown(item.key)}: {error} Nothing was loaded."
            ) from error
        return part.describe_change(saved, self._states)


def _keys(name: str, metadata: Metadata) -> set[str]:
    """The keys of all processes' states that a checkpoint holds under a name."""
    return {key for key in metadata.tensors if key.startswith(f"{name}.") and _KEY.fullmatch(key.removeprefix(name))}


def _read_states(file: Path, item: StorageItem) -> tuple[Place, dict[str, bytes]]:
    """What a tensor of bytes holds, which torch reads without running what is pickled."""
    if item.length > _ITEM_BYTES:
        raise CheckpointError(f"expected random states of {NUM_BYTES} bytes, found an archive of {item.length}.")
    with open_file(file) as opened:
        data = opened.read(item.start, item.length)
    try:
        values = torch.load(io.BytesIO(data), weights_only=True).numpy().tobytes()
    except Exception as error:  # torch raises whatever its reader came upon
        raise CheckpointError(f"expected a tensor of bytes, found what torch cannot read ({error}).") from error
    return decode_states(values)

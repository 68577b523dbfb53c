"""The seal of a state: which rank saved which cursor, seen by an ordinary ``dcp.load`` on any number of ranks.

A cursor is the same on all ranks, so DCP keeps one rank's copy and compares none. The seal is one tensor of fixed shape
of which every rank writes the rows that it owns, each with a hash of the cursor that this rank holds. Where rows differ
when it is loaded, ranks held different cursors, or files of two saves lie in one directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import xxhash

from resumable_data.errors import SealError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner import WriteItem

SEAL_KEY = "resumable_data.seal"
NUM_ROWS = 4096
"""More ranks than rows leave some of them without a row, and so unseen."""

_SHAPE = (NUM_ROWS, 2)


class Seal(torch.Tensor):
    """``(NUM_ROWS, 2)`` int64, each row the hash of a cursor and the save's nonce.

    In a process group DCP takes from it, and reads into it, the rows of this rank only. It pickles as a plain tensor.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.Tensor.__reduce_ex__(self.plain(), protocol)  # type: ignore[no-untyped-call]  # torch's has none

    def plain(self) -> torch.Tensor:
        """The same memory as an ordinary tensor."""
        return self.as_subclass(torch.Tensor)

    def __create_write_items__(self, fqn: str, seal: object) -> list[WriteItem]:
        from torch.distributed.checkpoint import metadata, planner  # torch 2.13 takes a second to import it

        first, stop = own_rows()
        if first == stop:
            return []
        chunk = metadata.ChunkStorageMetadata(torch.Size((first, 0)), torch.Size((stop - first, _SHAPE[1])))
        properties = metadata.TensorProperties.create_from_tensor(self.plain())
        data = planner.TensorWriteData(chunk=chunk, properties=properties, size=torch.Size(_SHAPE))
        index = metadata.MetadataIndex(fqn, chunk.offsets)
        return [planner.WriteItem(index=index, type=planner.WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        from torch.distributed.checkpoint import metadata

        first, stop = own_rows()
        if first == stop:
            return []
        return [metadata.ChunkStorageMetadata(torch.Size((first, 0)), torch.Size((stop - first, _SHAPE[1])))]

    def __get_tensor_shard__(self, index: object) -> torch.Tensor:
        first, stop = own_rows()
        return self.plain()[first:stop]


def own_rows() -> tuple[int, int]:
    """The rows of this process: ``[first, stop)``, all of them where there is no process group."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)
    return rank * NUM_ROWS // size, (rank + 1) * NUM_ROWS // size


def make_seal(cursor: bytes, nonce: int = 0) -> Seal:
    """The seal of a cursor in its fixed-size form.

    Args:
        cursor: What `encode_cursor` gave.
        nonce: A number of the save, below 2^63; 0 where the save has none.
    """
    row = np.array([_hash(cursor), nonce], np.int64)
    seal: Seal = torch.from_numpy(np.broadcast_to(row, _SHAPE).copy()).as_subclass(Seal)
    return seal


def check_seal(seal: torch.Tensor, cursor: bytes) -> int:
    """Make sure that all rows that were loaded are those of one save, and of this cursor; the save's nonce.

    Raises:
        SealError: They are not.
    """
    first, stop = own_rows() if isinstance(seal, Seal) else (0, NUM_ROWS)
    if tuple(seal.shape) != _SHAPE or seal.dtype != torch.int64:
        raise SealError(f"expected a seal of shape {_SHAPE} and type int64, found {tuple(seal.shape)}, {seal.dtype}")
    rows = seal.as_subclass(torch.Tensor)[first:stop].cpu().numpy()
    if not rows.size:
        return 0
    others = int((rows[:, 0] != _hash(cursor)).sum())
    if others:
        raise SealError(
            f"the checkpoint's cursor is not that of all ranks that saved it: {others} of {len(rows)} rows of the seal "
            "read here belong to another cursor. Ranks held different cursors, or files of two saves lie in one "
            "directory, say after a crash while a checkpoint was overwritten. The loader stays where it was, and what "
            "else was read from there may be mixed too: do not go on from it. Load an earlier checkpoint, and save "
            "each one into a directory of its own."
        )
    nonces = np.unique(rows[:, 1])
    if nonces.size > 1:
        raise SealError(
            f"the checkpoint holds files of {nonces.size} saves of the same cursor: model and optimizer may be of "
            "different moments. The loader stays where it was; do not go on from there. Load an earlier checkpoint, "
            "and save each one into a directory of its own."
        )
    return int(nonces[0])


def _hash(cursor: bytes) -> int:
    return xxhash.xxh3_64_intdigest(cursor) >> 1

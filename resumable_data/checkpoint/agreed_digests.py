"""One digest for each tensor, from what all ranks say of their parts: where replicas are equal and parts tile it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.checkpoint.digest import combine, finish
from resumable_data.checkpoint.tiling import Box, show_box, tiling_fault
from resumable_data.errors import DisagreementError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN = 4


class ChunkDigest(msgspec.Struct, frozen=True, array_like=True):
    """A box of a tensor and its partial sum.

    Attributes:
        offsets: Where it begins, in elements.
        sizes: Of the box.
        digest: The partial sum.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    digest: int


class LocalDigest(msgspec.Struct, frozen=True, array_like=True):
    """What one rank holds of a tensor.

    Attributes:
        key: The tensor's name in the state.
        dtype: Its name in torch without the ``torch.``.
        shape: Of the whole tensor.
        chunks: The boxes that this rank holds; none where it holds no element.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[ChunkDigest, ...]


def merge_digests(gathered: Sequence[Sequence[LocalDigest]]) -> dict[str, str]:
    """The digest of each tensor, in the order in which the ranks name them.

    Args:
        gathered: What each rank holds, in the order of ranks.

    Raises:
        DisagreementError: Ranks hold different values of one box, differ in dtype or shape, or their boxes do not tile
            a tensor; names the tensor, the box, and the ranks.
    """
    by_key: dict[str, dict[int, LocalDigest]] = {}
    for rank, held in enumerate(gathered):
        for local in held:
            by_key.setdefault(local.key, {})[rank] = local
    return {key: _merge(key, ranks) for key, ranks in by_key.items()}


def _merge(key: str, ranks: Mapping[int, LocalDigest]) -> str:
    kinds = {rank: f"{local.dtype}{list(local.shape)}" for rank, local in ranks.items()}
    if len(set(kinds.values())) > 1:
        raise _disagreement(f"{key}: ranks disagree on dtype and shape", kinds)
    boxes: dict[Box, dict[int, int]] = {}
    for rank, local in ranks.items():
        for chunk in local.chunks:
            boxes.setdefault((chunk.offsets, chunk.sizes), {})[rank] = chunk.digest
    for box, digests in boxes.items():
        if len(set(digests.values())) > 1:
            shown = {rank: f"{digest:016x}" for rank, digest in digests.items()}
            raise _disagreement(f"{key}{show_box(box)}: ranks hold different values of one part", shown)
    first = next(iter(ranks.values()))
    fault = tiling_fault(first.shape, list(boxes))
    if fault is not None:
        raise DisagreementError(
            f"{key}: expected the parts on {_ranks(list(ranks))} to make up the whole tensor, each element in one part "
            f"and its copies; {fault}. A checkpoint of it would miss elements or keep one of two values. Check that "
            "all ranks of the tensor's mesh take part, and that a key names the same tensor on all of them."
        )
    return finish(combine(next(iter(digests.values())) for digests in boxes.values()), first.dtype, first.shape)


def _disagreement(what: str, by_rank: Mapping[int, str]) -> DisagreementError:
    by_value: dict[str, list[int]] = {}
    for rank, value in by_rank.items():
        by_value.setdefault(value, []).append(rank)
    table = "\n".join(f"  {value}  on {_ranks(ranks)}" for value, ranks in by_value.items())
    return DisagreementError(
        f"{what}:\n{table}\nA checkpoint keeps one of them and is silent about the others, so a restart would go on "
        "with values that some ranks never had. Find where the ranks parted before going on; a tensor that is meant to "
        "differ needs a key for each rank, as rng.rank3."
    )


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return f"rank {shown}" + (f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else "")

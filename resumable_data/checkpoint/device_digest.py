"""The digest of a tensor that lies on an accelerator, made there: only the sum is copied to the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from resumable_data.checkpoint.digest_layout import WORD_BYTES, Box, panels, segment_keys, split, word_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

_PART_BYTES = 1 << 25
"""Of a tensor that are summed at once; products take twice as many."""


def device_sum(tensor: torch.Tensor, shape: Sequence[int], offsets: Sequence[int]) -> torch.Tensor:
    """The partial sum of a box of a tensor, the number that `array_digest` makes of the same bytes.

    Args:
        tensor: The box, on any device, of any strides.
        shape: Of the whole tensor.
        offsets: Where the box begins.

    Returns:
        () int64 on the same device, two's complement.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    if tensor.numel() == 0:
        return total
    tensor = tensor.detach().resolve_conj().resolve_neg()
    box = Box.of(shape, offsets, tensor.shape, tensor.element_size())
    max_bytes = max(1, _PART_BYTES * math.prod(box.sizes) // math.prod(box.run_shape))
    for part, start in split(tensor.reshape(box.sizes), box.offsets, max_bytes):
        total += _part_sum(part, box._replace(offsets=start, sizes=tuple(part.shape)))
    return total


def _part_sum(part: torch.Tensor, box: Box) -> torch.Tensor:
    if not box.has_whole_rows_inside:
        around = torch.zeros(box.run_shape, dtype=part.dtype, device=part.device)
        around[box.inside_run] = part
        part = around
    start, stop = box.bytes_of_row
    data = part.contiguous().reshape(-1).view(torch.uint8).reshape(box.num_rows, stop - start)
    first, last = start // WORD_BYTES, -(-stop // WORD_BYTES)  # words, cut ones too
    words = _words(data, start - first * WORD_BYTES, last - first)
    sums = torch.zeros(box.num_rows, dtype=torch.int64, device=part.device)
    for panel in panels(first, last):
        begin = panel.segment * word_keys().size + panel.start - first
        # block: (rows, segments, width)
        block = words[:, begin : begin + panel.num_segments * panel.width]
        block = block.reshape(box.num_rows, panel.num_segments, panel.width)
        factors = word_keys()[panel.start : panel.start + panel.width]
        by_segment = (block * _on(block, factors)).sum(-1)
        sums += (by_segment * _on(block, segment_keys(panel.segment, panel.num_segments))).sum(-1)
    return (sums * _on(sums, box.row_keys(0, box.num_rows))).sum()


def _words(data: torch.Tensor, lead: int, num_words: int) -> torch.Tensor:
    """Rows of bytes as words: (rows, num_words) int32, with zeros for the bytes of words that the rows cut."""
    num_rows, num_bytes = data.shape
    if num_bytes != num_words * WORD_BYTES or data.storage_offset() % WORD_BYTES or data.data_ptr() % WORD_BYTES:
        padded = torch.zeros((num_rows, num_words * WORD_BYTES), dtype=torch.uint8, device=data.device)
        padded[:, lead : lead + num_bytes] = data
        data = padded
    return data.view(torch.int32)


def _on(like: torch.Tensor, numbers: NDArray[np.int64]) -> torch.Tensor:
    return torch.tensor(numbers, device=like.device)

"""The digest of a tensor word by word, in plain integers: no array arithmetic, and nothing of the package."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash

TWO_64 = 1 << 64


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % TWO_64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % TWO_64
    return x ^ x >> 31


def key(seed: int, index: int) -> int:
    return mix((seed + (index + 1) * 0x9E3779B97F4A7C15) % TWO_64) | 1


def digest(data: bytes, itemsize: int, dtype: str, shape: Sequence[int]) -> str:
    """Of a whole tensor: `data` is its elements in C order, little-endian."""
    row_bytes = itemsize
    for size in reversed(shape):
        if row_bytes < 256:
            row_bytes *= size
    total = 0
    for row in range(len(data) // max(row_bytes, 1)):
        words = data[row * row_bytes : (row + 1) * row_bytes] + bytes(-row_bytes % 4)
        for j, (word,) in enumerate(struct.iter_unpack("<i", words)):
            total += word * key(1, row) * key(2, j // 4096) * key(3, j % 4096)
    tag = xxhash.xxh3_64_intdigest(f"{dtype}[{','.join(map(str, shape))}]".encode())
    return f"{mix((total + tag) % TWO_64):016x}"

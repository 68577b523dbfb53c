"""Key words of the seeded orders: xxh3 of everything that must make two orders unrelated.

The message that is hashed names the algorithm version, the purpose, the seed, the epoch, the length and the
name, each with its own length in front, so that no two different tuples give the same message and none of
them can be traded for another: (seed 5, epoch 1) has nothing in common with (seed 6, epoch 0).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

WORDS_PER_DIGEST = 4


def key_message(*, version: int, purpose: str, seed: int, epoch: int, length: int, name: str) -> bytes:
    """Serialise what a key depends on, without ambiguity.

    Args:
        version: of the algorithm that will use the key.
        purpose: what the key is for, for example ``"order.feistel"``.
        seed: of the run, at least 0.
        epoch: at least 0.
        length: number of IDs in the order.
        name: of the random stream; different names give unrelated keys.

    Returns:
        Each field as 8 bytes of length (little endian) and its UTF-8 text.
    """
    fields = ("resumable_data", str(version), purpose, str(seed), str(epoch), str(length), name)
    encoded = [field.encode("utf-8") for field in fields]
    return b"".join(len(field).to_bytes(8, "little") + field for field in encoded)


def key_words(message: bytes, num_words: int) -> npt.NDArray[np.uint32]:
    """Expand a message to ``(num_words,)`` uint32, the same on every platform.

    Digest ``i`` is the 128-bit xxh3 of the message under xxh3 seed ``i``, read as four big-endian words.
    """
    num_digests = -(-num_words // WORDS_PER_DIGEST)
    digests = b"".join(xxh3_128_digest(message, seed=i) for i in range(num_digests))
    return np.frombuffer(digests, dtype=">u4")[:num_words].astype(np.uint32)

"""Key words: unambiguous, the same everywhere."""

from __future__ import annotations

import itertools

from xxhash import xxh3_128_intdigest

from resumable_data.order.keys import key_message, key_words


def message(
    version: int = 1, purpose: str = "p", seed: int = 1, epoch: int = 1, length: int = 1, name: str = ""
) -> bytes:
    return key_message(version=version, purpose=purpose, seed=seed, epoch=epoch, length=length, name=name)


def test_each_field_counts_and_none_can_stand_for_another() -> None:
    """Different tuples give different messages, also where their texts run together alike."""
    numbers, texts = (1, 11, 111), ("", "1", "11", "\0", "1\0")
    tuples = list(itertools.product(numbers, texts, numbers, numbers, numbers, texts))
    assert len({message(*fields) for fields in tuples}) == len(tuples)


def test_words_are_the_digests_of_the_message() -> None:
    """Word 4 i + j is 32-bit digit j, most significant first, of the 128-bit xxh3 under seed i."""
    text = message(name="é", seed=2**63 - 1)
    expected = [xxh3_128_intdigest(text, seed=i) >> 96 - 32 * j & 0xFFFF_FFFF for i in range(3) for j in range(4)]
    assert key_words(text, 10).tolist() == expected[:10]
    assert key_words(text, 4).tolist() == expected[:4]


def test_the_message_is_written_down() -> None:
    """The layout of the message is part of the format: fields with their lengths in front."""
    assert message(purpose="a", seed=20, name="é") == b"".join(
        len(field).to_bytes(8, "little") + field
        for field in (b"resumable_data", b"1", b"a", b"20", b"1", b"1", b"\xc3\xa9")
    )

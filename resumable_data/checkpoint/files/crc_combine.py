"""The CRC32 of bytes that lie in several pieces, from the pieces' CRC32s: no byte is read."""

from __future__ import annotations

from functools import cache, lru_cache

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""The polynomial 1: bit 31 is the coefficient of x^0."""


def crc32_combine(first: int, second: int, second_length: int) -> int:
    """The CRC32 of two pieces, one after the other.

    Args:
        first: CRC32 of the first piece.
        second: CRC32 of the second.
        second_length: Length of the second [bytes].

    Example:
        >>> import zlib
        >>> crc32_combine(zlib.crc32(b"ab"), zlib.crc32(b"c"), 1) == zlib.crc32(b"abc")
        True
    """
    return _multiply(_shift(second_length), first) ^ second


@cache
def _power(exponent: int) -> int:
    """x^(2^exponent), modulo the polynomial."""
    if exponent == 0:
        return _ONE >> 1
    half = _power(exponent - 1)
    return _multiply(half, half)


@lru_cache(4096)
def _shift(num_bytes: int) -> int:
    """x^(8 num_bytes), modulo the polynomial: what that many bytes after it do to a CRC."""
    result, exponent = _ONE, 3
    while num_bytes:
        if num_bytes & 1:
            result = _multiply(_power(exponent), result)
        num_bytes >>= 1
        exponent += 1
    return result


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials over two elements, modulo the CRC's."""
    product, bit = 0, _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product

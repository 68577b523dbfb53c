"""The fixed-size form of a cursor that goes into a checkpoint as one uint8 tensor.

::

    byte 0    8 bytes   magic  b"RDCURSOR"
         8    4 bytes   format version, little-endian
        12    4 bytes   length of the JSON, little-endian
        16    8 bytes   xxh3_64 of the JSON, little-endian
        24              the cursor's canonical JSON, then zeros up to 4096 bytes

The size never changes, so the state loads at any world size, and equal cursors are equal byte for byte.
"""

from __future__ import annotations

import struct

import xxhash

from resumable_data.cursor.cursor import Cursor
from resumable_data.errors import CorruptStateError, StateError

STATE_NUM_BYTES = 4096
STATE_KEY = "resumable_data.cursor"

_MAGIC = b"RDCURSOR"
_FORMAT_VERSION = 1
_HEADER = struct.Struct("<8sIIQ")


def encode_cursor(cursor: Cursor) -> bytes:
    """The cursor as exactly `STATE_NUM_BYTES` bytes.

    Raises:
        StateError: It does not fit, which takes dozens of migrations or very long names.
    """
    body = cursor.to_json()
    if _HEADER.size + len(body) > STATE_NUM_BYTES:
        raise StateError(
            f"the cursor takes {len(body)} bytes as JSON and its tensor holds {STATE_NUM_BYTES - _HEADER.size}. "
            f"It records {len(cursor.migrations)} migrations; nothing was changed. Shorten the order's name or the "
            "fingerprint, or start a new run instead of migrating this one again."
        )
    header = _HEADER.pack(_MAGIC, _FORMAT_VERSION, len(body), xxhash.xxh3_64_intdigest(body))
    return (header + body).ljust(STATE_NUM_BYTES, b"\0")


def decode_cursor(data: bytes | bytearray | memoryview) -> Cursor:
    """The cursor from its fixed-size form.

    Raises:
        CorruptStateError: The bytes are damaged, or of another format.
    """
    data = bytes(data)
    if len(data) != STATE_NUM_BYTES:
        raise _corrupt(f"{STATE_NUM_BYTES} bytes", f"{len(data)} bytes")
    magic, version, length, checksum = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise _corrupt(f"a cursor, which starts with {_MAGIC!r}", f"bytes that start with {magic!r}")
    if version != _FORMAT_VERSION:
        raise _corrupt(f"format version {_FORMAT_VERSION}", f"version {version}")
    if length > STATE_NUM_BYTES - _HEADER.size:
        raise _corrupt(f"a length of at most {STATE_NUM_BYTES - _HEADER.size} bytes", f"{length}")
    body, padding = data[_HEADER.size : _HEADER.size + length], data[_HEADER.size + length :]
    found = xxhash.xxh3_64_intdigest(body)
    if found != checksum:
        raise _corrupt(f"the checksum {checksum:016x}", f"{found:016x}: the bytes were changed after saving")
    if padding.strip(b"\0"):
        raise _corrupt("zeros after the cursor", "other bytes")
    return Cursor.from_json(body)


def _corrupt(expected: str, found: str) -> CorruptStateError:
    return CorruptStateError(
        f"the saved cursor cannot be read: expected {expected}, found {found}. Nothing was loaded, the loader is "
        "where it was; load an earlier checkpoint."
    )

"""JSON inside a fixed number of bytes: what a checkpoint holds as one uint8 tensor, whatever its contents.

::

    byte 0    8 bytes   magic
         8    4 bytes   format version, little-endian
        12    4 bytes   length of the JSON, little-endian
        16    8 bytes   xxh3_64 of the JSON, little-endian
        24              the canonical JSON, then zeros

The size never changes, so the state loads at any world size, and equal values are equal byte for byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from resumable_data.errors import CorruptStateError

_HEADER = struct.Struct("<8sIIQ")


@dataclass(frozen=True, kw_only=True)
class FixedForm:
    """One kind of such bytes.

    Attributes:
        name: What they are called in messages.
        magic: The first 8 bytes.
        version: Of what the JSON means.
        num_bytes: The size.
        remedy: The end of what is said where they cannot be read.
    """

    name: str
    magic: bytes
    version: int
    num_bytes: int
    remedy: str

    @property
    def max_json_bytes(self) -> int:
        """The most JSON that fits."""
        return self.num_bytes - _HEADER.size

    def wrap(self, body: bytes) -> bytes:
        """The JSON `body`, of at most `max_json_bytes`, in its fixed form."""
        header = _HEADER.pack(self.magic, self.version, len(body), xxhash.xxh3_64_intdigest(body))
        return (header + body).ljust(self.num_bytes, b"\0")

    def unwrap(self, data: bytes | bytearray | memoryview) -> bytes:
        """The JSON in its fixed form.

        Raises:
            CorruptStateError: The bytes are damaged, or of another format.
        """
        data = bytes(data)
        if len(data) != self.num_bytes:
            raise self.corrupt(f"{self.num_bytes} bytes", f"{len(data)} bytes")
        magic, version, length, checksum = _HEADER.unpack_from(data)
        if magic != self.magic:
            raise self.corrupt(f"a {self.name}, which starts with {self.magic!r}", f"bytes that start with {magic!r}")
        if version != self.version:
            raise self.corrupt(f"format version {self.version}", f"version {version}")
        if length > self.max_json_bytes:
            raise self.corrupt(f"a length of at most {self.max_json_bytes} bytes", f"{length}")
        body, padding = data[_HEADER.size : _HEADER.size + length], data[_HEADER.size + length :]
        found = xxhash.xxh3_64_intdigest(body)
        if found != checksum:
            raise self.corrupt(f"the checksum {checksum:016x}", f"{found:016x}: the bytes were changed after saving")
        if padding.strip(b"\0"):
            raise self.corrupt(f"zeros after the {self.name}", "other bytes")
        return body

    def corrupt(self, expected: str, found: str) -> CorruptStateError:
        """The error for bytes that cannot be read."""
        return CorruptStateError(
            f"the saved {self.name} cannot be read: expected {expected}, found {found}. {self.remedy}"
        )

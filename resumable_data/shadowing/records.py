"""The records of a shadow file, each the msgpack payload of one frame of `resumable_data.ledger.frames`.

A record is a msgpack array: its tag, then its fields in the order below. Fields are only ever added at the end, with a
default, together with a new format version.
"""

from __future__ import annotations

import os
import re
from typing import Annotated

import msgspec

# Sums of a few of these still fit int64.
Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]
Name = Annotated[str, msgspec.Meta(max_length=256)]

PAYLOAD_BYTES_MAX = 1 << 24
ROWS_MAX = (PAYLOAD_BYTES_MAX - 64) // 8
_FILE_NAME = re.compile(r"rank-(\d{5,8})-(\d{20})-[0-9a-f]{16}\.shadow", re.ASCII)


class Header(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first record: whose file it is.

    Attributes:
        launch: The same on all ranks of one launch, and of no other, where they could agree; else empty or the same for
            several launches.
        rank: The rank, from 0.
        num_replicas: Number of ranks.
        start_ns: Unix time of the file, nanoseconds.
        package_version: Version of resumable_data that wrote it.
    """

    launch: Name
    rank: Rank
    num_replicas: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    start_ns: Natural
    package_version: Name


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A new ``iter()``.

    Attributes:
        label: The sampler's epoch, None where it has none.
        num_samples: Samples that all ranks together read in one epoch; None where that is unknown.
        padding: Rows that the sampler repeats to fill up all ranks.
        droppable: Rows at the end of the epoch that this rank may drop.
        num_batches: Batches until the end of the epoch; None where that is unknown.
    """

    label: Natural | None
    num_samples: Natural | None
    padding: Natural
    droppable: Natural
    num_batches: Natural | None


class Ids(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A batch, by the IDs of its samples: little-endian int64, one after another."""

    values: bytes


class Hashes(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """A batch, by the xxh3_64 of each row's contents: little-endian, one after another."""

    values: bytes


class End(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """The iterator came to its end."""


class Saved(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """A checkpoint was saved that holds the work on all batches before."""


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Shadowing stopped, and the loop went on; nothing follows."""

    reason: Name


Record = Begin | Ids | Hashes | End | Saved | Stopped

encode_record = msgspec.msgpack.Encoder().encode
header_decoder = msgspec.msgpack.Decoder(Header)
record_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def file_name(rank: int, start_ns: int) -> str:
    """A name that no other file has."""
    return f"rank-{rank:05d}-{start_ns:020d}-{os.urandom(8).hex()}.shadow"


def is_file_name(name: str) -> bool:
    """Whether a file of this name is a shadow file."""
    return _FILE_NAME.fullmatch(name) is not None

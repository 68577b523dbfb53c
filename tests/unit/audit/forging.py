"""Ledgers with right checksums and numbers that nobody wrote: any field of any record may hold anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from resumable_data.ledger.frames import CLAIM_KIND, RANK_KIND, FrameReader, open_regular
from resumable_data.ledger.layout import CLAIM_NAME
from tests.unit.audit.test_lies import write_frames

if TYPE_CHECKING:
    from pathlib import Path

_SMALL = (0, 1, 2, 3, 255, 1 << 20, 1 << 24, (1 << 24) + 1, 1 << 31, 1 << 40, (1 << 40) + 1, (1 << 53) + 1, 1 << 60)
_LARGE = ((1 << 61) - 1, 1 << 61, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -(1 << 63))
EXTREMES = (*_SMALL, *_LARGE)


class Place(NamedTuple):
    """A number in a ledger: in which file and record, and where in there."""

    file: Path
    record: int
    keys: tuple[Any, ...]


def payloads_of(file: Path) -> list[bytes]:
    """The records of a claim or rank file, encoded."""
    kind = CLAIM_KIND if file.name == CLAIM_NAME else RANK_KIND
    with open_regular(file) as opened:
        frames = FrameReader(opened, file, kind=kind, payload_bytes_max=1 << 20)
        return [one for _, payloads in frames.blocks() for one in payloads]


def numbers_in(file: Path) -> list[Place]:
    """All numbers in a file, the tags of records left out."""
    return [
        Place(file, record, keys)
        for record, payload in enumerate(payloads_of(file))
        for keys in numbers_under(msgspec.msgpack.decode(payload))
        if keys != (0,)
    ]


def forge(changes: dict[Place, Any]) -> None:
    """Put other values into some places; checksums are made right again."""
    for file in {place.file for place in changes}:
        records = [msgspec.msgpack.decode(payload) for payload in payloads_of(file)]
        for place, value in changes.items():
            if place.file == file:
                holder = records[place.record]
                for key in place.keys[:-1]:
                    holder = holder[key]
                holder[place.keys[-1]] = value
        kind = CLAIM_KIND if file.name == CLAIM_NAME else RANK_KIND
        version = int.from_bytes(file.read_bytes()[8:12], "little")
        write_frames(file, kind, [msgspec.msgpack.encode(record) for record in records], version=version)


def numbers_under(value: Any, keys: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all integers in nested lists and dictionaries."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, inner in items for found in numbers_under(inner, (*keys, key))]
    return [keys] if isinstance(value, int) and not isinstance(value, bool) else []

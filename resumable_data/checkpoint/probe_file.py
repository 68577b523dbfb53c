"""What a model gave for a few fixed examples right before it was saved, as a file beside the manifest.

It is MessagePack without extensions: plain values, read without torch, that run nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from resumable_data.checkpoint.files.opening import read_small
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

PROBE_NAME = "resumable_data.probe.msgpack"
PROBE_VERSION = 1
MAX_PROBE_BYTES = 1 << 28

Count = Annotated[int, msgspec.Meta(ge=0)]


class ProbeRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logits of fixed examples.

    Attributes:
        version: `PROBE_VERSION`.
        examples: xxh3_128 of the examples: their structure, dtypes, shapes and bytes.
        dtype: What the logits were computed in, without ``torch.``.
        computed_in: The dtype of the model that rounds most, which sets how far logits may be apart.
        shape: Of the logits.
        kind: What `logits` is an array of: a type that holds all values of `dtype`.
        logits: Little-endian, in C order.
        is_random: Whether a second forward gave others.
    """

    version: int = PROBE_VERSION
    examples: str
    dtype: str
    computed_in: str
    shape: tuple[Count, ...]
    kind: Literal["<f4", "<f8"]
    logits: bytes
    is_random: bool = False

    @property
    def values(self) -> NDArray[np.float64]:
        """The logits: `shape` float64."""
        return np.frombuffer(self.logits, self.kind).reshape(self.shape).astype(np.float64)

    def to_bytes(self) -> bytes:
        """As it is written."""
        return msgspec.msgpack.encode(self, order="deterministic")

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "the probe") -> ProbeRecord:
        """What `to_bytes` gave.

        Raises:
            CheckpointError: It is none of this version.
        """
        try:
            record = msgspec.msgpack.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise _bad(where, f"something else ({error})") from None
        if record.version != PROBE_VERSION:
            raise _bad(where, f"version {record.version}")
        expected = math.prod(record.shape) * int(record.kind[-1])
        if len(record.logits) != expected:
            raise _bad(where, f"{len(record.logits)} bytes of logits for the shape {list(record.shape)}")
        return record


def _bad(where: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: expected logits as version {PROBE_VERSION} writes them, found {shown(found)}. Nothing was compared. "
        "Restore the file from a copy, or read it with the version of resumable_data that wrote it."
    )


def read_probe(path: Path) -> ProbeRecord | None:
    """The logits beside the checkpoint at `path`; None where there are none.

    Raises:
        CheckpointError: They cannot be read, or are none of this version.
    """
    file = path / PROBE_NAME
    data = read_small(file, MAX_PROBE_BYTES)
    return None if data is None else ProbeRecord.from_bytes(data, shown(file))

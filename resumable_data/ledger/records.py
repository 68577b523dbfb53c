"""The records of a ledger, each the msgpack payload of one frame.

A record is a msgpack array: its tag, then its fields in the order below. Fields are only ever added at the
end, with a default, together with a new format version.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Annotated

import msgspec
import xxhash

from resumable_data.cursor import Cursor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Sums of a few of these still fit int64, so what a forged record holds cannot overflow the audit's arrays.
Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 61)]
Rows = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Digest = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(max_length=256)]


class Claim(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One attempt: a launch of the job from the cursor `start`.

    Attributes:
        run_id: The run this attempt belongs to.
        attempt: Its number, from 1; 0 where the ledger could not be written.
        start: The cursor it starts at; ``start.attempt`` is its parent, 0 for none.
        num_replicas: Data-parallel ranks, W.
        microbatch: The largest number of rows in one microbatch, b.
        epochs: Epochs of the whole run, None for a run without an end.
        package_version: Version of resumable_data that wrote it.
    """

    run_id: Name
    attempt: Natural
    start: Cursor
    num_replicas: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    microbatch: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
    epochs: Positive | None
    package_version: Name


class RankHeader(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The first record of a rank's file: whose it is.

    Attributes:
        run_id: As in the claim.
        attempt: As in the claim.
        rank: Data-parallel rank, from 0.
        num_replicas: As in the claim.
        peer: 0, or the number of a tensor- or context-parallel peer that reads the same samples.
        ids: ``"digest"``, or ``"full"`` where deliveries carry the IDs too.
        payload_bytes_max: No record of this file is larger.
    """

    run_id: Name
    attempt: Positive
    rank: Natural
    num_replicas: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    peer: Natural
    ids: Name
    payload_bytes_max: Annotated[int, msgspec.Meta(ge=64, le=1 << 31)]


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """One microbatch handed to the training loop.

    Its row k, for k in [0, count), is the virtual position ``start + k * stride``. The last `padding` rows
    are padding of ``tail="pad"``: their positions are past the end of the update's epoch and wrap to its
    beginning.

    Attributes:
        update: Index of the update in the whole run; where the run is counted by batches, of the batch.
        index: Index of the microbatch in the update.
        start: Position of the first row.
        stride: Positions from one row to the next, at least 1.
        count: Rows, padding included, filler excluded.
        padding: How many of them are padding, the last ones.
        filler: Further rows of weight zero; never counted as delivered.
        digest: `digest_ids` of the IDs of the `count` rows, as they were fetched.
        ids: The IDs as little-endian int64, where the ledger keeps them.
    """

    update: Natural
    index: Natural
    start: Natural
    stride: Positive
    count: Rows
    padding: Rows
    filler: Rows
    digest: Digest
    ids: bytes | None = None


class Commit(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The optimizer has taken (`applied`) or skipped the step of `update`.

    In a run that is counted by batches, one step commits all batches up to `update` that were not committed before.
    """

    update: Natural
    applied: bool


class Rewind(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """Iteration starts again at `update`; earlier deliveries of it and of later ones are discarded."""

    update: Natural


class End(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The file was closed in order; nothing follows."""


class Unreadable(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """A row of the microbatch that is delivered next, whose sample could not be read: its weight is zero.

    Attributes:
        update: Index of the update in the whole run.
        index: Index of the microbatch in the update.
        position: The row's virtual position, as in `Delivered`.
        id: The sample's ID.
    """

    update: Natural
    index: Natural
    position: Natural
    id: Natural


class Jump(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """The loop left an epoch early: the batch `update`, delivered next, starts at `position`, that of a later epoch.

    Only in runs that are counted by batches. What lies before is dropped, if the batch is committed.
    """

    update: Natural
    position: Natural


RankRecord = Delivered | Commit | Rewind | End | Unreadable | Jump

# numpy's integers are as welcome as Python's: operator.index makes the one of the other.
_ENCODER = msgspec.msgpack.Encoder(enc_hook=operator.index)
encode_record = _ENCODER.encode
claim_decoder = msgspec.msgpack.Decoder(Claim)
header_decoder = msgspec.msgpack.Decoder(RankHeader)
record_decoder = msgspec.msgpack.Decoder(RankRecord)
record_list_decoder = msgspec.msgpack.Decoder(list[RankRecord])


def digest_ids(ids: NDArray[np.int64]) -> int:
    """The digest of fetched IDs: xxh3_64 of (k,) int64, C-contiguous, as little-endian bytes."""
    return xxhash.xxh3_64_intdigest(ids.astype("<i8", copy=False).data)

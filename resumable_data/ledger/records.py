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

ID_MODES = ("digest", "full")
PIECES = "pieces"
HEADER_ID_MODES = (*ID_MODES, PIECES)
ID_WIDTHS = (1, 2, 4, 8)


class OlderFile(msgspec.Struct, frozen=True, array_like=True):
    """How far a file of an older attempt went when a newer attempt was claimed.

    Attributes:
        attempt: The older attempt.
        rank: Data-parallel rank.
        peer: As in the file's header.
        num_bytes: Its size.
        checksum: The last 8 bytes, which after a whole frame are its checksum; 0 where it had fewer than 24 bytes.
    """

    attempt: Natural
    rank: Natural
    peer: Natural
    num_bytes: Natural
    checksum: Digest


class Mesh(msgspec.Struct, frozen=True, array_like=True):
    """The processes of a job, and which of them read different samples.

    Attributes:
        axes: Names and sizes of all axes of the device mesh, the slowest first; a single one without a mesh.
        data_axes: Those along which ranks read different samples.
    """

    axes: tuple[tuple[Name, Positive], ...] = ()
    data_axes: tuple[Name, ...] = ()


class TakenOver(msgspec.Struct, frozen=True, array_like=True):
    """The part of the update at the start cursor that a launch does not read again: its gradient was saved.

    Attributes:
        samples: Rows of the update, from its start on, padding rows among them.
        attempt: The attempt that delivered the last of them; 0 where none of this ledger did.
    """

    samples: Positive
    attempt: Natural


class Claim(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One attempt: a launch of the job from the cursor `start`.

    Attributes:
        run_id: The run this attempt belongs to.
        attempt: Its number, from 1; 0 where the ledger could not be written.
        start: The cursor it starts at; ``start.attempt`` is its parent, 0 for none, see `ClaimInside`.
        num_replicas: Data-parallel ranks, W.
        microbatch: The largest number of rows in one microbatch, b.
        epochs: Epochs of the whole run, None for a run without an end.
        package_version: Version of resumable_data that wrote it.
        mesh: The job's processes.
        older: The files of the attempts from its parent on, as they were.
    """

    run_id: Name
    attempt: Natural
    start: Cursor
    num_replicas: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    microbatch: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
    epochs: Positive | None
    package_version: Name
    mesh: Mesh = Mesh()
    older: tuple[OlderFile, ...] = ()

    @property
    def inside(self) -> TakenOver | None:
        """What it goes on from inside an update; None where it starts at the update's start."""
        return None

    @property
    def parent(self) -> int:
        """The attempt that it goes on from, 0 for none."""
        inside = self.inside
        return (inside and inside.attempt) or self.start.attempt

    def starting_inside(self, taken_over: TakenOver | None) -> Claim:
        """The same launch, going on after a part of its first update; from the update's start for None."""
        fields = {name: getattr(self, name) for name in Claim.__struct_fields__}
        return Claim(**fields) if taken_over is None else ClaimInside(**fields, taken_over=taken_over)


class ClaimInside(Claim, frozen=True, array_like=True, kw_only=True, tag=12):
    """A claim of a launch that goes on inside the update at its start cursor.

    Attributes:
        taken_over: The part of the update that is accumulated already. ``taken_over.attempt`` is its parent, where it
            is not 0.
    """

    taken_over: TakenOver

    @property
    def inside(self) -> TakenOver | None:
        """What it goes on from inside an update."""
        return self.taken_over


class RankHeader(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The first record of a rank's file: whose it is.

    Attributes:
        run_id: As in the claim.
        attempt: As in the claim.
        rank: Data-parallel rank, from 0.
        num_replicas: As in the claim.
        peer: 0, or the number of a tensor- or context-parallel peer that reads the same samples.
        ids: ``"digest"``, or ``"full"`` where deliveries carry the IDs too; or ``"pieces"`` where they carry what lay
            in their packed rows, in files of format version 2.
        payload_bytes_max: No record of this file is larger.
        process: Rank of the process in the job's group, 0 without one.
        id_bytes: Bytes of each ID where they are kept, the fewest of 1, 2, 4 and 8 that hold all of the order's.
        key_check: `key_check` of the secret that digests are keyed with; 0 where they are not.
        fold_rows: Where above 0, up to so many rows less one were delivered and not recorded if the process was killed.
    """

    run_id: Name
    attempt: Positive
    rank: Natural
    num_replicas: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    peer: Natural
    ids: Name
    payload_bytes_max: Annotated[int, msgspec.Meta(ge=64, le=1 << 31)]
    process: Natural = 0
    id_bytes: Annotated[int, msgspec.Meta(ge=1, le=8)] = 8
    key_check: Digest = 0
    fold_rows: Rows = 0


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """One microbatch handed to the training loop, or a few of one update folded into one record.

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
        ids: The IDs as little-endian integers of the header's `id_bytes`, where the ledger keeps them; or the pieces
            of packed rows, see `row_pieces.encode_pieces`.
        parts: How many microbatches, from `index` on; the rule for shares says where one ends.
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
    parts: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] = 1


class Again(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """What comes after the delivery before it, and is like it: as many rows and parts, no padding, no filler.

    Attributes:
        is_next: Whether it begins the next update; else it goes on in the same one.
        digest: As in `Delivered`.
        ids: As in `Delivered`.
    """

    is_next: bool
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


class Agreed(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """Right before a save the ranks agreed on a digest: the last span of coverage of the cursor that is saved.

    Attributes:
        update: The update at the cursor.
        start: Position of the first sample that the span covers.
        stop: The cursor's position.
        lane_0: First lane of its digest, of all ranks together.
        lane_1: Second lane.
    """

    update: Natural
    start: Natural
    stop: Natural
    lane_0: Digest
    lane_1: Digest


class Saved(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    """The checkpoint whose cursor is at `update` is complete on the disk: a restart goes on from there, or later."""

    update: Natural


RankRecord = Delivered | Again | Commit | Rewind | End | Unreadable | Jump | Agreed | Saved

# numpy's integers are as welcome as Python's: operator.index makes the one of the other.
_ENCODER = msgspec.msgpack.Encoder(enc_hook=operator.index)
encode_record = _ENCODER.encode
claim_decoder = msgspec.msgpack.Decoder(Claim | ClaimInside)
header_decoder = msgspec.msgpack.Decoder(RankHeader)
record_decoder = msgspec.msgpack.Decoder(RankRecord)
record_list_decoder = msgspec.msgpack.Decoder(list[RankRecord])


def digest_ids(ids: NDArray[np.int64], key: int = 0) -> int:
    """The digest of fetched IDs: xxh3_64 of (k,) int64, C-contiguous, as little-endian bytes; `key` is its seed."""
    return xxhash.xxh3_64_intdigest(ids.astype("<i8", copy=False).data, key)


def secret_key(secret: str) -> int:
    """The 64-bit key that digests are seeded with, of a secret text; 0 for none."""
    return (xxhash.xxh3_64_intdigest(secret.encode()) or 1) if secret else 0


def key_check(key: int) -> int:
    """What tells a wrong key from the right one, and nothing about the key's digests; 0 for none."""
    return (xxhash.xxh3_64_intdigest(b"resumable_data ledger key", key) or 1) if key else 0


def id_bytes(length: int) -> int:
    """Bytes that hold every ID of an order of `length` samples, a power of two."""
    return next(width for width in ID_WIDTHS if length <= 1 << 8 * width - (width == 8))

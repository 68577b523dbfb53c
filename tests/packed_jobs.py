"""Jobs over packed rows: documents that tell their tokens apart, the oracle beside them, and ranks in one process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from resumable_data import (
    BestFit,
    Concat,
    Fill,
    NoPacking,
    PackedTokens,
    ResumableLoader,
    Sequential,
    open_tokens,
)
from resumable_data.order.keys import key_message
from resumable_data.order.permutation import keyed_permutation
from tests import packing_oracle
from tests.oracle import Row, loss_scale, split_update
from tests.packed_run_oracle import (
    Packing,
    RunRow,
    arrays_of,
    cut_by_rows,
    cut_by_tokens,
    row_id,
    token_of,
)
from tests.simulated_ranks import Job, expect_full_coverage, lists_of

if TYPE_CHECKING:
    from resumable_data import Cursor, Microbatch
    from resumable_data.order import Order
    from resumable_data.packing import Policy
    from resumable_data.sources import TokenSource
    from tests.packed_run_oracle import Pack

POLICIES: list[Policy] = [BestFit(), Fill(), Concat(), NoPacking(), BestFit(truncate=True), NoPacking(truncate=True)]
LENGTHS = [5, 3, 0, 12, 8, 1, 30, 7, 2, 0, 9, 16, 4, 11, 6, 3, 21, 1, 13, 5]


def make_source(lengths: list[int]) -> TokenSource:
    """Documents whose tokens tell document and index."""
    tokens = [token_of(document, index) for document, length in enumerate(lengths) for index in range(length)]
    return open_tokens(np.array(tokens, np.int64), lengths=np.array(lengths, np.int64))


def make_packed(lengths: list[int] | None = None, **options: Any) -> PackedTokens:
    """Packed rows of 8 tokens in windows of 6 documents, where nothing else is said."""
    options = {"sequence_length": 8, "window": 6, **options}
    return PackedTokens(make_source(LENGTHS if lengths is None else lengths), **options)


def shuffled(num_rows: int, epoch: int, window: int, *, seed: int) -> list[int]:
    """The place of each packed row in its window."""
    message = key_message(
        version=1, purpose="packing.rows", seed=seed, epoch=epoch, length=num_rows, name=f"window {window}"
    )
    return keyed_permutation(num_rows, message).ids(np.arange(num_rows)).tolist() if num_rows > 1 else [0] * num_rows


def oracle_pack(policy: Policy, row_length: int) -> Pack | None:
    """What a policy of the package does to one window, in plain Python; None for all of an epoch as one text."""
    if isinstance(policy, Concat):
        return None
    if isinstance(policy, Fill):
        return partial(packing_oracle.fill, row_length=row_length, percent=100 * Fraction(str(policy.threshold)))
    assert isinstance(policy, BestFit | NoPacking)
    pack = packing_oracle.best_fit if isinstance(policy, BestFit) else packing_oracle.no_packing
    return partial(pack, row_length=row_length, truncate=policy.truncate)


def make_oracle(
    lengths: list[int] | None = None,
    *,
    sequence_length: int = 8,
    window: int = 6,
    policy: Policy | None = None,
    order: Order | None = None,
    seed: int = 0,
    epochs: int = 4,
) -> Packing:
    """The oracle of `make_packed` with the same arguments."""
    lengths = LENGTHS if lengths is None else lengths
    policy = BestFit() if policy is None else policy
    order = make_packed(lengths, seed=seed).order if order is None else order
    return Packing(
        lengths,
        lists_of(order, epochs=epochs),
        sequence_length,
        window,
        oracle_pack(policy, sequence_length),
        partial(shuffled, seed=seed),
        truncates=getattr(policy, "truncate", False),
    )


def place_of(cursor: Cursor) -> dict[str, int]:
    """A cursor's place among packed rows, as the oracle tells it."""
    assert cursor.packed
    return msgspec.structs.asdict(cursor.packed)


class PackedJob(Job):
    """The loaders of all ranks of one launch over packed rows.

    Args:
        packed: The rows.
        num_replicas: Ranks.
        **options: For `ResumableLoader`.
    """

    def __init__(self, packed: PackedTokens, num_replicas: int, **options: Any) -> None:
        self.order = packed.order
        self.num_replicas = num_replicas
        self.loaders = [
            ResumableLoader(packed, rank=rank, num_replicas=num_replicas, **options) for rank in range(num_replicas)
        ]
        self._iterators = None


@dataclass
class PackedProgress:
    """A run beside the oracle: what was committed, and what all launches delivered.

    Attributes:
        packing: The oracle.
        epochs: Of the whole run.
        num_rows: Rows of an update, where it is not cut by tokens.
        num_tokens: Tokens of an update.
        position: Rows committed.
        updates: Updates committed.
        skipped: Those of them whose step was skipped.
        seen: How often each token was handed to an update that was committed.
    """

    packing: Packing
    epochs: int
    num_rows: int = 0
    num_tokens: int = 0
    position: int = 0
    updates: int = 0
    skipped: int = 0
    seen: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def rows(self) -> list[RunRow]:
        """All rows of the run."""
        return self.packing.run(self.epochs)

    @property
    def committed(self) -> list[Row]:
        """What the coverage digest is of."""
        return [Row(position, row_id(row.pieces)) for position, row in enumerate(self.rows[: self.position])]

    def upcoming(self) -> list[tuple[int, int]]:
        """The updates that are left."""
        if self.num_tokens:
            return cut_by_tokens(self.rows, self.position, self.num_tokens)
        return cut_by_rows(self.rows, self.position, self.num_rows)

    def commit(self, stop: int, *, applied: bool = True) -> None:
        """Count the next update."""
        for row in self.rows[self.position : stop]:
            self.seen.update((document, token) for document, *span in row.pieces for token in range(*span))
        self.position = stop
        self.updates += 1
        self.skipped += not applied

    def expect_cursor(self, cursor: Cursor) -> None:
        """Make sure that the package's counters are those kept here."""
        place = self.packing.place_after(self.rows[: self.position])
        assert place_of(cursor) == place
        assert (cursor.tokens, cursor.target_tokens) == (place["tokens"], place["target_tokens"])
        assert (cursor.epoch, cursor.offset, cursor.position) == (0, self.position, self.position)
        assert (cursor.updates, cursor.skipped, cursor.samples) == (self.updates, self.skipped, self.position)
        assert (cursor.padding, cursor.dropped, cursor.batches) == (0, 0, 0)

    def expect_coverage(self, cursor: Cursor) -> None:
        """Make sure that the digest is of exactly the committed rows."""
        expect_full_coverage(cursor, self)  # type: ignore[arg-type]  # it asks for no more than is here

    def expect_tokens(self, epochs: int) -> None:
        """Make sure that every token was committed once an epoch, truncation apart."""
        packing, wanted = self.packing, Counter[tuple[int, int]]()
        for document, length in enumerate(packing.lengths):
            kept = min(length, packing.row_length) if packing.truncates else length
            wanted.update({(document, token): epochs for token in range(kept)})
        assert self.seen == wanted


def expect_data(microbatch: Microbatch, rows: list[list[packing_oracle.Piece]], row_length: int, filler: int) -> None:
    """Make sure that the tensors are the oracle's, `filler` of the rows being filler."""
    wanted = arrays_of(rows, row_length, num_filler=filler)
    data = microbatch.data
    found = {name: data[name].tolist() for name in ("tokens", "labels", "position_ids", "cu_seqlens")}
    assert found | {"max_seqlen": data["max_seqlen"]} == vars(wanted)


def expect_update(
    steps: list[list[Microbatch]],
    progress: PackedProgress,
    span: tuple[int, int],
    *,
    microbatch: int,
    pad_microbatches: bool = False,
    normalize: str = "tokens",
    data: bool = True,
) -> None:
    """Make sure that all microbatches of an update are what the oracle says, on every rank."""
    rows = progress.rows
    update = tuple(Row(position, row_id(rows[position].pieces)) for position in range(*span))
    ranks = len(steps[0])
    split = split_update(update, num_replicas=ranks, microbatch=microbatch, pad_microbatches=pad_microbatches)
    assert len(steps) == len(split)
    targets = sum(row.num_targets for row in rows[slice(*span)])
    total = max(1, targets) if normalize == "tokens" else len(update)
    scale = loss_scale(total, num_replicas=ranks, gradient_reduction="mean")
    by_id = {row.id: rows[row.position].pieces for row in update}
    for index, (step, together) in enumerate(zip(steps, split, strict=True)):
        for got, wanted in zip(step, together, strict=True):
            assert (got.update, got.index, got.count) == (progress.updates, index, len(split))
            assert got.is_last == (index == len(split) - 1)
            assert (got.positions.tolist(), got.ids.tolist()) == (wanted.positions, wanted.ids)
            assert got.pieces == [rows[position].pieces for position in wanted.positions]
            assert got.weights.tolist() == wanted.weights
            assert got.loss_scale == scale
            if data:
                pieces = [by_id[one] for one in wanted.data]
                expect_data(got, pieces, progress.packing.row_length, wanted.num_filler)
    labelled = sum(int((got.data["labels"] != -100).sum()) for step in steps for got in step)
    assert labelled == targets


def ordered(lengths: list[int]) -> Sequential:
    """The documents in their own order."""
    return Sequential(len(lengths))

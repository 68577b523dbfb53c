"""The ledger beside one launch of one rank: joining an attempt, and writing down what happens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import xxhash

from resumable_data import __version__
from resumable_data.cursor import compare_recipes, describe_changes
from resumable_data.errors import LedgerCorruptError, LedgerError, OtherRunError
from resumable_data.ledger import Claim, Mesh, TakenOver
from resumable_data.ledger.row_pieces import RowPieces
from resumable_data.loader.agreement import gather_numbers

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from resumable_data.cursor import CoverageSpan, Cursor, Phase
    from resumable_data.ledger import Ledger, RankWriter
    from resumable_data.ledger.row_pieces import Pieces
    from resumable_data.loader.targets import Process
    from resumable_data.sampler import MicrobatchRows, RankLayout, Topology

_RUN_ID = re.compile("[0-9a-f]{16}")


class Recording:
    """Writes one rank's file of one attempt; without a ledger it does nothing.

    Args:
        ledger: The ledger, or None.
        topology: This process among the others.
        layout: Rank, rank set and microbatch.
        epochs: Epochs of the run, None without an end.
    """

    def __init__(self, ledger: Ledger | None, topology: Topology, layout: RankLayout, epochs: int | None) -> None:
        self._ledger = ledger
        self._topology = topology
        self._layout = layout
        self._epochs = epochs
        self._writer: RankWriter | None = None
        self.attempt = 0
        """The attempt, 0 before `open` and where there is no ledger."""

    def known_run(self) -> str:
        """The run that the ledger belongs to; empty where it has none yet.

        Raises:
            LedgerCorruptError: It was not written by a loader.
        """
        newest = self._ledger and self._ledger.newest()
        if newest and not _RUN_ID.fullmatch(newest.run_id):
            raise LedgerCorruptError(
                f"expected a run ID of 16 hexadecimal digits in attempt {newest.attempt} of the ledger, found "
                f"{newest.run_id!r}. Nothing was read or written; give the run another ledger directory."
            )
        return newest.run_id if newest else ""

    def open(self, start: Cursor, run_id: str, process: Process | None, phase: Phase | None = None) -> None:
        """Claim or join the attempt, and open this rank's file. Collective.

        A peer of a data-parallel rank writes one only where the ledger was made with ``peers=True``.

        Args:
            start: The cursor that the launch starts at.
            run_id: The run.
            process: This process among those of the job, where there are several.
            phase: What of the update at `start` was read before, where it goes on inside it.

        Raises:
            OtherRunError: The ledger belongs to another run.
            LedgerError: It cannot be written and ``on_error="raise"``.
        """
        ledger, group = self._ledger, self._topology.group
        if ledger is None:
            return
        arguments: dict[str, Any] = {
            "run_id": run_id,
            "num_replicas": self._layout.num_replicas,
            "microbatch": self._layout.microbatch,
            "epochs": self._epochs,
            "mesh": Mesh(self._topology.axes, self._topology.data_axes),
            "taken_over": phase and TakenOver(phase.samples, phase.attempt),
        }
        if group is None:
            _check_run(ledger, start)
            claim = ledger.join(start, rank=self._layout.rank, **arguments)
        else:
            claim = _claim_together(ledger, start, group, arguments)
        self.attempt = claim.attempt
        peer = 0 if process is None else process.number
        failure = self._open_rank(ledger, claim, peer) if claim.attempt and (not peer or ledger.peers) else None
        if group is not None and ledger.on_error == "raise":
            _fail_together(failure, group)
        if failure is not None:
            raise failure

    def _open_rank(self, ledger: Ledger, claim: Claim, peer: int) -> LedgerError | None:
        """Open this rank's file; the error where it cannot be opened and errors are to be raised."""
        process = 0 if self._topology.group is None else dist.get_rank(self._topology.group)
        try:
            self._writer = ledger.open_rank(claim, rank=self._layout.rank, peer=peer, process=process)
        except LedgerError as error:
            return error
        return None

    def is_fenced(self) -> bool:
        """Whether another launch claimed a newer attempt, so that the run goes on there and not here."""
        return self._ledger is not None and self._ledger.is_fenced(self.attempt)

    def deliver(
        self, rows: MicrobatchRows, digest: int, unreadable: tuple[int, ...], packed: Pieces | None = None
    ) -> None:
        """Record a microbatch; `digest` is that of all rows asked for, filler included, and so is `packed`."""
        writer = self._writer
        if writer is None:
            return
        for row in unreadable:
            position = rows.start + rows.shape.stride * row
            writer.unreadable(rows.update, rows.microbatch, position, int(rows.ids[row]))
        if rows.num_filler:
            digest = xxhash.xxh3_64_intdigest(rows.ids_bytes)
        writer.delivered(
            rows.update,
            rows.microbatch,
            rows.start,
            rows.shape.stride,
            rows.num_rows,
            rows.num_padding,
            rows.num_filler,
            digest,
            rows.ids if writer.needs_ids else None,
            pieces=RowPieces.of_first(packed, rows.num_rows) if packed is not None and writer.needs_pieces else None,
            is_last=rows.is_last,
        )

    def commit(self, update: int, applied: bool) -> None:
        """Record that the step of an update was taken or skipped."""
        if self._writer is not None:
            self._writer.commit(update, applied)

    def jump(self, update: int, position: int) -> None:
        """Record that a batch starts a later epoch."""
        if self._writer is not None:
            self._writer.jump(update, position)

    def rewind(self, update: int) -> None:
        """Record that iteration starts again."""
        if self._writer is not None:
            self._writer.rewind(update)

    def agreed(self, update: int, span: CoverageSpan) -> None:
        """Record what the ranks agreed on, and wait until all so far is on the disk."""
        if self._writer is not None:
            self._writer.agreed(update, span)

    def saved(self, update: int) -> None:
        """Record that the checkpoint at an update is complete."""
        if self._writer is not None:
            self._writer.saved(update)

    def sync(self) -> None:
        """Wait until all so far is on the disk."""
        if self._writer is not None:
            self._writer.sync()

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _check_run(ledger: Ledger, start: Cursor) -> None:
    """Make sure that a run from position 0 is not recorded among the attempts of another one.

    A change that was declared before the first update is in the cursor, and is not another run.
    """
    newest = ledger.newest()
    changes = compare_recipes(newest.start.recipe, start.recipe) if newest else ()
    if start.updates == 0 and changes and not start.migrations:
        raise OtherRunError(
            f"this run starts at position 0 with another recipe than the run in the ledger {ledger.path}:\n"
            f"{describe_changes(changes)}\nNothing was read. Give the new run a ledger directory of its own; or, "
            "to go on with the old run, load its checkpoint first."
        )


def _claim_together(ledger: Ledger, start: Cursor, group: ProcessGroup, arguments: dict[str, Any]) -> Claim:
    """The first process claims the attempt and tells the others its number; -1 tells them that it failed."""
    if dist.get_rank(group):
        attempt = gather_numbers(0, group)[0]
        if attempt < 0:
            raise LedgerError("process 0 could not claim an attempt in the ledger; its own error says why")
        taken_over = arguments.pop("taken_over")
        claim = Claim(attempt=attempt, start=start, package_version=__version__, **arguments)
        return claim.starting_inside(taken_over)
    try:
        _check_run(ledger, start)
        claim = ledger.claim(start, **arguments)
    except BaseException:
        gather_numbers(-1, group)
        raise
    gather_numbers(claim.attempt, group)
    return claim


def _fail_together(failure: LedgerError | None, group: ProcessGroup) -> None:
    """Where one process fails, let none go on into a collective call that the others never make. Collective."""
    failed = [process for process, number in enumerate(gather_numbers(int(failure is not None), group)) if number]
    if failed and failure is None:
        raise LedgerError(f"process {failed[0]} could not open its file in the ledger; its own error says why")

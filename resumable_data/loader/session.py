"""One launch of one rank: progress, the ledger beside it, and the agreement with the other ranks."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import xxhash

from resumable_data.errors import OtherRunError, StateError, UsageError
from resumable_data.loader.agreement import (
    Report,
    check_fence,
    check_reports,
    cursor_hash,
    exchange,
    gather_cursors,
    sum_reports,
)
from resumable_data.loader.phases import PhaseReport, check_phases, exchange_phases, phase_of
from resumable_data.loader.recording import Recording
from resumable_data.loader.targets import Process, read_count, sum_counts
from resumable_data.loader.unreadable import require_no_peers
from resumable_data.sampler import Progress
from resumable_data.sampler.progress import MAX_UNCOMMITTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup

    from resumable_data.cursor import Cursor, Lanes, Phase
    from resumable_data.ledger import Ledger
    from resumable_data.ledger.row_pieces import Pieces
    from resumable_data.plan import RunSchedule, UpdateSpan
    from resumable_data.sampler import MicrobatchRows, RankLayout, Topology


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """What stays the same for as long as a loader lives, or until it is remapped.

    Attributes:
        topology: This process among the others.
        layout: Rank, rank set and microbatch.
        epochs: Epochs of the run, None without an end.
        loss_factor: See `resumable_data.plan.loss_factor`.
        ledger: Where deliveries are recorded, or None.
        max_unreadable: Samples that a rank may fill in for; None where one that cannot be read is an error.
        sample_seeds: The seed of the samples' random numbers, and whether global generators are seeded with it.
        schedule: How the run's positions are cut.
        max_uncommitted: Updates that may be delivered ahead of commit().
    """

    topology: Topology
    layout: RankLayout
    epochs: int | None
    loss_factor: float
    ledger: Ledger | None
    schedule: RunSchedule
    max_unreadable: int | None = None
    sample_seeds: tuple[int, bool] = (0, False)
    max_uncommitted: int = MAX_UNCOMMITTED

    def hash(self) -> int:
        """A 64-bit hash of what must be equal on all ranks."""
        layout = self.layout
        on_error = self.ledger and self.ledger.on_error  # decides which collective calls are made
        of_layout = (layout.microbatch, layout.pad_microbatches)
        of_samples = (self.loss_factor, self.max_unreadable, *self.sample_seeds)
        values = (self.epochs, *of_layout, *of_samples, on_error)
        return xxhash.xxh3_64_intdigest(repr(values).encode())


class Session:
    """From a start cursor to a load, or to the end of the job: one attempt, as one rank sees it.

    Args:
        start: Where it starts.
        settings: The job's settings.
    """

    def __init__(self, start: Cursor, settings: JobSettings) -> None:
        self._settings = settings
        self._progress = Progress(
            start,
            schedule=settings.schedule,
            is_alone=settings.layout.num_replicas == 1,
            counts_targets=start.recipe.normalize == "targets",
            max_uncommitted=settings.max_uncommitted,
        )
        self._process: Process | None = None
        self._recording = Recording(settings.ledger, settings.topology, settings.layout, settings.epochs)
        self._has_begun = False

    @property
    def cursor(self) -> Cursor:
        """The committed cursor."""
        return self._progress.cursor

    @property
    def run_id(self) -> str:
        """The run; known from the first delivery on."""
        return self._progress.run_id

    @property
    def has_uncommitted(self) -> bool:
        """Whether something was delivered that is not committed."""
        return self._progress.has_uncommitted

    def check_run(self, start: Cursor) -> None:
        """Make sure that a saved cursor is of this session's run, and of its ledger's.

        Raises:
            OtherRunError: It is of another one.
        """
        # a run that committed nothing has no state to be mixed up with; what its ledger holds is another matter
        known = self.cursor.run_id or self._recording.known_run()
        if known and start.run_id and known != start.run_id:
            raise OtherRunError(
                f"the saved cursor belongs to run {start.run_id}; this loader or its ledger belongs to run {known}. "
                "Going on would mix two histories, and no audit could tell them apart. Nothing was loaded; load a "
                "checkpoint of this run, or give the other run its own loader and ledger directory."
            )

    def begin(self) -> None:
        """Before the first delivery: agree with the other ranks, claim the attempt, open the ledger. Collective.

        Without a process group it talks to nobody.

        Raises:
            DisagreementError: The ranks do not start at the same place, or are not one rank set.
            UsageError: Samples may be filled in for, and ranks have peers that must read the same.
            LedgerError: The ledger belongs to something else, or cannot be written and ``on_error="raise"``.
        """
        if self._has_begun:
            return
        group = self._settings.topology.group
        reports = [self._report()] if group is None else exchange(self._report(), group)
        if group is not None:
            check_reports(reports, explain=lambda: gather_cursors(self.cursor, group))
            self._process = self._find_peers(reports, group)
            if self._settings.max_unreadable is not None:
                require_no_peers(reports)
        self._progress.run_id = self._progress.run_id or f"{reports[0].run:016x}"
        self._recording.open(self.cursor, self._progress.run_id, self._process, self._progress.taken_over)
        self._progress.attempt = self._recording.attempt
        self._has_begun = True

    def deliver(
        self, rows: MicrobatchRows, digest: int, unreadable: tuple[int, ...] = (), packed: Pieces | None = None
    ) -> None:
        """Take down that `rows` are handed to the training loop; `digest` is that of all rows asked for.

        `unreadable` are the numbers of those that could not be read, filler rows left out; `packed` are the pieces of
        packed rows, filler rows' included.
        """
        self._progress.deliver(rows)
        self._recording.deliver(rows, digest, unreadable, packed)

    def jump(self, index: int, position: int) -> None:
        """Take down that the batch `index`, delivered next, starts at the later epoch at `position`."""
        self._recording.jump(index, position)

    def commit(self, *, applied: bool, ends_step: bool = True) -> None:
        """Move the cursor past the update, or batch, at the cursor; see `Progress.commit`."""
        update = self._progress.commit(applied=applied, ends_step=ends_step)
        if ends_step:
            self._recording.commit(update, applied)

    def count_targets(self, update: int, local_count: Any, global_count: Any) -> float:
        """Take down the target tokens of a delivered update; its loss scale. See `Update.set_targets`. Collective."""
        self._progress.require_delivered(update)
        layout, process, before = self._settings.layout, self._process, self._progress.taken_over
        if before is not None and before.targets is not None and update == before.update:
            read_count(local_count if global_count is None else global_count)  # of the rest alone, which is no use
            tokens = before.targets
        elif global_count is not None:
            tokens = read_count(global_count)
        elif process is not None:
            tokens = sum_counts(update, local_count, process)
        elif layout.num_replicas == 1:
            tokens = read_count(local_count)
        else:
            raise UsageError(
                f"this loader is rank {layout.rank} of {layout.num_replicas} by its arguments, and no process group "
                "has these ranks, so there is nobody to add counts up with. Initialise the process group with the same "
                "ranks; for ranks simulated in one process add their counts up and give the sum as global_count=."
            )
        self._progress.count_targets(update, tokens)
        return self._settings.loss_factor / max(tokens, 1)

    def rewind(self, *, by_update: bool = False) -> None:
        """Forget what was delivered and not committed; see `Progress.rewind`."""
        if self._progress.has_uncommitted:
            self._recording.rewind(self.cursor.next_index)
        self._progress.rewind(by_update=by_update)

    def hand_out(self, rows: MicrobatchRows) -> None:
        """Take down that the training loop takes `rows` out of an update that was delivered whole."""
        self._progress.hand_out(rows)

    @property
    def phase(self) -> int:
        """Rows of the update at the cursor that all ranks together were handed."""
        return self._progress.open_part.samples

    @property
    def place(self) -> dict[str, int]:
        """Where iteration starts, see `RankRows.from_place`."""
        cursor = self.cursor
        return {"update": cursor.updates, "epoch": cursor.epoch, "offset": cursor.offset, "phase": self.num_behind}

    @property
    def num_behind(self) -> int:
        """Rows of the update at the cursor that were read before this session, and are not read again."""
        before = self._progress.taken_over
        return 0 if before is None else before.samples

    def start_inside(self, phase: Phase) -> None:
        """Go on after a part of the update at the cursor that was read before.

        Raises:
            StateError: It is not of this update, or something was read already.
            OtherRunError: It is of another run.
        """
        if phase.samples == 0:
            return
        if self._has_begun or self._progress.has_uncommitted:
            raise StateError(
                "start_inside() expects a loader that has read nothing since load_state_dict(); this one has, from the "
                f"start of update {self.cursor.updates} on. Rows of the phase would be trained on twice. Nothing "
                "was changed; load the cursor again, then the phase, then iterate."
            )
        known = self._progress.run_id or self._recording.known_run()
        phase.check_start(self.cursor, self._span, run_id=known)
        self._progress.start_inside(phase, takes_lanes=self._settings.layout.rank == 0)

    def gather_phase(self, peers: Sequence[Session] | None = None) -> Phase:
        """What all ranks were handed of the update at the cursor; the ledger is on the disk up to here. Collective.

        Args:
            peers: As for `agree`.

        Raises:
            DisagreementError: Ranks are at different places.
            CommitError: All of the update was delivered.
            UsageError: As for `agree`.
        """
        group, sessions = self._settings.topology.group, [self] if peers is None else list(peers)
        if group is not None and peers is None:
            reports = exchange_phases(self._phase_report(), group)
        else:
            self._require_peers(peers)
            reports = [session._phase_report() for session in sessions]
        check_phases(reports)
        before, part = self._progress.taken_over, self._progress.open_part
        attempt = self._progress.attempt if part.has_own or before is None else before.attempt
        num_rows = 0 if self._span is None else self._span.num_rows
        phase = phase_of(reports, self.cursor, run_id=self._progress.run_id, attempt=attempt, num_rows=num_rows)
        for session in sessions:
            session._recording.sync()
        return phase

    @property
    def _span(self) -> UpdateSpan | None:
        """The update at the cursor; None where the run is over."""
        return self._settings.schedule.update_at(self.cursor.epoch, self.cursor.offset)

    def _phase_report(self) -> PhaseReport:
        layout = self._settings.layout
        return PhaseReport.of(
            self._progress.open_part,
            rank=layout.rank,
            num_replicas=layout.num_replicas,
            cursor=cursor_hash(self.cursor),
        )

    def agree(self, peers: Sequence[Session] | None = None) -> Cursor:
        """Make sure that all ranks hold the same cursor, and put the digest of what they read into it. Collective.

        The ledger is on the disk afterwards, up to here.

        Args:
            peers: The sessions of all ranks, where they live in one process without a process group.

        Raises:
            DisagreementError: They do not.
            FencedError: Another launch goes on with the run.
            UsageError: There is no process group of these ranks and no peers were given.
        """
        group = self._settings.topology.group
        if peers is not None:
            sessions = list(peers)
            reports = [session._report() for session in sessions]
            check_reports(reports, explain=lambda: [session.cursor for session in sessions])
        elif group is not None:
            reports = exchange(self._report(), group)
            check_reports(reports, explain=lambda: gather_cursors(self.cursor, group))
            sessions = [self]
        else:
            self._require_peers(peers)
            reports, sessions = [self._report()], [self]
        check_fence(reports)
        lanes = sum_reports(reports)
        for session in sessions:
            session._agree_on(lanes)
        return self.cursor

    def _require_peers(self, peers: Sequence[Session] | None) -> None:
        """Without a process group: make sure that all ranks are here."""
        if peers is None and self._settings.layout.num_replicas > 1:
            raise UsageError(
                f"this loader is rank {self._settings.layout.rank} of {self._settings.layout.num_replicas} by its "
                "arguments, and no process group has these ranks, so there is nobody to ask. Initialise the process "
                "group with the same ranks; for ranks simulated in one process give peers=[all their loaders]."
            )

    def _agree_on(self, lanes: Lanes) -> None:
        if self._settings.layout.num_replicas > 1:
            self._progress.cover(lanes)  # a rank that is alone covers at each commit
        cursor = self.cursor
        if cursor.coverage and cursor.coverage[-1].stop == cursor.position:
            self._recording.agreed(cursor.next_index, cursor.coverage[-1])

    def mark_saved(self, update: int | None = None) -> None:
        """Record in the ledger that the checkpoint at an update is complete; at the cursor where None is given."""
        self._recording.saved(self.cursor.next_index if update is None else update)

    def close(self) -> None:
        """End the ledger's file."""
        self._recording.close()

    def _find_peers(self, reports: Sequence[Report], group: ProcessGroup) -> Process:
        peers = [process for process, report in enumerate(reports) if report.rank == self._settings.layout.rank]
        return Process(group, number=peers.index(dist.get_rank(group)), num_peers=len(peers))

    def _report(self) -> Report:
        layout = self._settings.layout
        lane_0, lane_1 = self._progress.own_coverage.lanes
        return Report(
            rank=layout.rank,
            num_replicas=layout.num_replicas,
            settings=self._settings.hash(),
            cursor=cursor_hash(self.cursor),
            lane_0=lane_0,
            lane_1=lane_1,
            run=0 if self._has_begun else self._propose_run(),
            is_fenced=self._has_begun and self._is_first and self._recording.is_fenced(),
        )

    @property
    def _is_first(self) -> bool:
        """Whether this is the process that looks at the ledger for all."""
        group = self._settings.topology.group
        return group is None or dist.get_rank(group) == 0

    def _propose_run(self) -> int:
        """The number of the ledger's run, else a new one: random, or the recipe's where ranks cannot talk."""
        known = self._recording.known_run()
        if known:
            return int(known, 16)
        if self._settings.topology.group is None and self._settings.layout.num_replicas > 1:
            return xxhash.xxh3_64_intdigest(repr(self.cursor.recipe.fields()).encode())
        return secrets.randbits(64)

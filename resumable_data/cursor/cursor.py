"""Committed progress: a few exact integers, whatever the world size and the dataset's length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.cursor.coverage import CoverageSpan, add_span
from resumable_data.cursor.recipe import Recipe, RecipeChange
from resumable_data.cursor.takeover import SamplerRun, TakeOver, take_over_consumed
from resumable_data.errors import CorruptStateError, UsageError
from resumable_data.order import Sequential, TorchShuffle, check_order
from resumable_data.plan.batch_plan import require_count
from resumable_data.plan.packed_place import PackedPlace
from resumable_data.plan.schedule import Place, Schedule

if TYPE_CHECKING:
    from resumable_data.order import Order

CURSOR_VERSION = 1


class Migration(msgspec.Struct, frozen=True, array_like=True):
    """Declared changes, made before the update with index `update`, at `position`.

    They are of the recipe's fields; and, by names that no recipe has (``"mesh.tp"``, ``"precision.model.parameters"``),
    of what else `load_checkpoint` refuses to change without a declaration.
    """

    update: int
    position: int
    changes: tuple[RecipeChange, ...]


class Committed(msgspec.Struct):
    """What some updates, one after another, took.

    Attributes:
        stop: Position after the last one's samples.
        applied: Updates whose optimizer step was taken.
        skipped: Updates whose optimizer step was skipped.
        samples: Their samples.
        tokens: Their target tokens, 0 where not known.
        padding: Their padding rows.
        batches: Batches of all ranks together, where the run is counted by them.
    """

    stop: int = 0
    applied: int = 0
    skipped: int = 0
    samples: int = 0
    tokens: int = 0
    padding: int = 0
    batches: int = 0


class Cursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What optimizer updates have committed. The next sample is `offset` samples into `epoch`.

    Attributes:
        recipe: What must match for these numbers to mean the same thing.
        run_id: Identifies the run; empty until its first commit.
        attempt: The attempt (launch of the job) that committed last; 0 before the first commit, and where
            no ledger counts attempts.
        applied: Updates whose optimizer step was taken.
        skipped: Updates whose optimizer step was skipped, say by a loss scaler; their samples are consumed.
        samples: Samples committed; padding and dropped samples are not among them.
        tokens: Of packed rows, the committed tokens of documents. Else target tokens of the committed samples, where
            their number is known ahead; with ``normalize="targets"`` those counted, padding rows included; else 0.
        epoch: Epoch of the next sample. The end of epoch e is (e + 1, 0). Packed rows are numbered through all epochs,
            so that it is 0 with them, `offset` counts rows of the run, and `packed` tells epoch and window.
        offset: Samples of `epoch` that are behind the cursor, in [0, N).
        padding: Rows committed that repeated a sample to fill an update (``tail="pad"``).
        dropped: Samples skipped at the ends of epochs (``tail="drop"``).
        batches: Batches committed, each of all ranks, in a run over a DataLoader and a DistributedSampler; else 0.
        migrations: Declared changes of the recipe, and of mesh, precision and schedule, oldest first.
        coverage: Digests of what was delivered, of one or more spans of committed positions.
        packed: The place of the next packed row, and the documents and tokens behind it; `msgspec.UNSET`, and not in
            the JSON, in other runs.
        taken_over: Where the run was taken over from another loader; `msgspec.UNSET`, and not in the JSON, where
            it was not.
    """

    recipe: Recipe
    version: int = CURSOR_VERSION
    run_id: str = ""
    attempt: int = 0
    applied: int = 0
    skipped: int = 0
    samples: int = 0
    tokens: int = 0
    epoch: int = 0
    offset: int = 0
    padding: int = 0
    dropped: int = 0
    batches: int = 0
    migrations: tuple[Migration, ...] = ()
    coverage: tuple[CoverageSpan, ...] = ()
    taken_over: TakeOver | msgspec.UnsetType = msgspec.UNSET
    packed: PackedPlace | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def begin(cls, recipe: Recipe) -> Cursor:
        """The cursor of a run that begins."""
        return cls(recipe=recipe, packed=PackedPlace() if recipe.is_packed else msgspec.UNSET)

    @property
    def target_tokens(self) -> int:
        """Target tokens committed: of packed rows those with a label, else `tokens`."""
        return self.packed.target_tokens if self.packed else self.tokens

    @property
    def updates(self) -> int:
        """Updates committed, applied or skipped; the index of the next one."""
        return self.applied + self.skipped

    @property
    def next_index(self) -> int:
        """Index of the next update, or of the next batch where the run is counted by batches."""
        return self.batches if self.recipe.counts_batches else self.updates

    @property
    def has_counted_batches(self) -> bool:
        """Whether some of the run was counted by batches, so that its updates alone do not tell where they led."""
        return self.recipe.counts_batches or self.batches > 0

    @property
    def position(self) -> int:
        """Place of the next sample in the run's global sequence: ``epoch * N + offset``."""
        return self.epoch * self.recipe.length + self.offset

    def schedule(self, epochs: int | None = None) -> Schedule:
        """How the run's positions are cut into updates from here on."""
        recipe = self.recipe
        if recipe.counts_batches:
            raise UsageError(
                f"tail={recipe.tail!r} belongs to a run over torch's DataLoader, whose batches depend on the number of "
                "ranks; it has no schedule of updates. Use it with resumable_data.track, or give one of the loader's "
                "tails."
            )
        return Schedule(length=recipe.length, global_batch=recipe.global_batch, tail=recipe.tail, epochs=epochs)

    def advance(
        self, done: Committed, place: Place, *, run_id: str, attempt: int, packed: PackedPlace | None = None
    ) -> Cursor:
        """The cursor after the updates `done`, which must be the next ones.

        Args:
            done: What they took.
            place: Where the next one starts.
            run_id: The run, see the attribute.
            attempt: The attempt that committed them.
            packed: Where the next one starts among packed rows; of use with these only.
        """
        advanced = place.epoch * self.recipe.length + place.offset - self.position
        return msgspec.structs.replace(
            self,
            run_id=run_id,
            attempt=attempt,
            applied=self.applied + done.applied,
            skipped=self.skipped + done.skipped,
            samples=self.samples + done.samples,
            tokens=packed.tokens if packed else self.tokens + done.tokens,
            epoch=place.epoch,
            offset=place.offset,
            padding=self.padding + done.padding,
            dropped=self.dropped + advanced - done.samples,
            batches=self.batches + done.batches,
            packed=packed or self.packed,
        )

    def crossed(
        self,
        since: Cursor,
        *,
        every_samples: int | None = None,
        every_tokens: int | None = None,
        every_updates: int | None = None,
    ) -> bool:
        """Whether a multiple of so many samples, tokens or updates lies behind this cursor and not behind `since`.

        For logging, evaluation and schedules: what they count by it goes on where it was when ranks, or the global
        batch, change, which a count of local steps does not.

        Args:
            since: An earlier cursor of the run, say of before the last commit.
            every_samples: Committed samples between two times; give exactly one of the three.
            every_tokens: Committed `tokens`.
            every_updates: Committed updates, applied or skipped.

        Raises:
            UsageError: Not exactly one of the three is given, or it is not at least 1; or `since` is later.

        Example:
            >>> start = Cursor.begin(Recipe(order=Sequential(100).describe(), global_batch=8))
            >>> later = msgspec.structs.replace(start, samples=16, applied=2, offset=16)
            >>> later.crossed(start, every_samples=10), later.crossed(start, every_samples=20)
            (True, False)
        """
        given = {"samples": every_samples, "tokens": every_tokens, "updates": every_updates}
        chosen = {name: every for name, every in given.items() if every is not None}
        if len(chosen) != 1:
            raise UsageError(f"give exactly one of every_samples, every_tokens and every_updates; got {len(chosen)}")
        ((name, every),) = chosen.items()
        require_count(f"every_{name}", every)
        before, now = getattr(since, name), getattr(self, name)
        if before > now:
            raise UsageError(
                f"since must be an earlier cursor of the run; it is at {before} {name} and this one at {now}"
            )
        return bool(now // every > before // every)

    def with_coverage(self, span: CoverageSpan) -> Cursor:
        """The cursor with the digest of one more span of its committed positions."""
        return msgspec.structs.replace(self, coverage=add_span(self.coverage, span))

    def to_json(self) -> bytes:
        """The cursor as canonical JSON: fields in the order above, sorted keys, no spaces, exact integers."""
        return msgspec.json.encode(self, order="deterministic")

    @classmethod
    def from_json(cls, data: bytes | str) -> Cursor:
        """The cursor from its JSON.

        Raises:
            CorruptStateError: It is not the JSON of a cursor of this version, or its numbers contradict each other.
        """
        try:
            cursor = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise CorruptStateError(
                f"expected a cursor as JSON, found something else ({error}). Nothing was loaded; give a file made by "
                "Cursor.to_json(), or a checkpoint's cursor."
            ) from None
        cursor.check()
        return cursor

    def check(self) -> None:
        """Make sure that the numbers can be those of a cursor.

        Raises:
            CorruptStateError: They cannot.
        """
        if self.version != CURSOR_VERSION:
            raise CorruptStateError(
                f"expected a cursor of version {CURSOR_VERSION}, found version {self.version}. Nothing was loaded; "
                "read it with the version of resumable_data that wrote it."
            )
        length = self.recipe.length
        counters = (self.attempt, self.applied, self.skipped, self.samples, self.tokens, self.epoch, self.padding)
        if min(*counters, self.dropped, self.batches, self.offset) < 0 or self.offset >= length:
            raise _contradiction(f"counters of at least 0 and an offset in [0, {length})", self)
        if self.samples + self.dropped != self.position:
            raise _contradiction(f"samples and dropped ones that add up to the position, {self.position}", self)
        self._check_packed()
        first = self._check_take_over()
        edges = [edge for span in self.coverage for edge in (span.start, span.stop)]
        if edges != sorted(edges) or (edges and not first <= edges[0] <= edges[-1] <= self.position):
            expected = f"digests of ascending spans of positions in [{first}, {self.position}]"
            raise _contradiction(expected, self.coverage)
        if not all(0 <= lane < 1 << 64 for span in self.coverage for lane in span.lanes):
            raise _contradiction("digests of two 64-bit numbers", self.coverage)

    def _check_packed(self) -> None:
        """Make sure that there is a place among packed rows where the recipe is of such, and that it can be one."""
        if bool(self.packed) != self.recipe.is_packed:
            raise _contradiction("a place among packed rows exactly where the recipe is of packed rows", self)
        if self.packed:
            counts = msgspec.structs.astuple(self.packed)
            if min(counts) < 0 or self.packed.tokens != self.tokens or self.packed.target_tokens > self.tokens:
                raise _contradiction("counts of at least 0, and the tokens of its place among packed rows", self)

    def _check_take_over(self) -> int:
        """Make sure that the take-over, where there is one, can have led here; the first position after it."""
        before = self.taken_over
        if not before:
            return 0
        position = before.epoch * self.recipe.length + before.offset
        counts = ("applied", "skipped", "samples", "padding", "dropped")
        if not before.is_possible(self.recipe.length) or any(
            getattr(before, name) > getattr(self, name) for name in counts
        ):
            raise _contradiction(f"a take-over whose counts are at most its own, found {before!r:.500} in it", self)
        return position

    @classmethod
    def from_distributed_sampler(
        cls,
        *,
        length: int,
        epoch: int,
        batches_per_rank: int,
        batch_size: int,
        num_replicas: int,
        global_batch: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        dataloader_drop_last: bool = False,
        accumulation_steps: int = 1,
        first_epoch: int = 0,
        updates: int | None = None,
        skipped: int = 0,
        tail: str = "carry",
        normalize: str = "samples",
        fingerprint: str | None = None,
    ) -> Cursor:
        """The cursor that continues a run on torch's DistributedSampler exactly where its last update ended.

        Load it into a loader or sampler whose order is ``TorchShuffle(length, seed)``, or ``Sequential(length)`` where
        `shuffle` was off, on any number of ranks. All that is counted here is taken on trust: the cursor holds no
        digest of it, and audits say so.

        With gradient accumulation, the batches after the last full window of `accumulation_steps` are rolled back:
        their gradients are in no checkpoint, so they are read again. Windows are counted from the start of each epoch,
        and the last one of an epoch may be short. Where a loop counted them on through epochs, or stopped elsewhere,
        leave `accumulation_steps` at 1, count the batches up to the last optimizer step, and give `updates`.

        Args:
            length: Samples of the dataset.
            epoch: What `set_epoch` was last called with; 0 where a script never calls it.
            batches_per_rank: Batches of this epoch that each rank trained on; not what workers had fetched beyond.
            batch_size: Samples of one batch of one rank.
            num_replicas: Ranks of the old run.
            global_batch: Samples of one update from here on, over all ranks.
            seed: As the sampler had it, like `shuffle` and `drop_last`.
            shuffle: See `seed`.
            drop_last: See `seed`.
            dataloader_drop_last: As the DataLoader had its own `drop_last`.
            accumulation_steps: Batches of each rank in one optimizer step.
            first_epoch: What `set_epoch` was first called with, where a loop does not count from 0.
            updates: Optimizer steps that the old run took, where they are not what the numbers above give.
            skipped: How many of them a loss scaler skipped.
            tail: From here on, see `Schedule`.
            normalize: From here on, see `Recipe`.
            fingerprint: From here on, see `Recipe`.

        Raises:
            UsageError: The numbers are not those of any run.

        >>> cursor = Cursor.from_distributed_sampler(
        ...     length=1000, seed=7, epoch=2, batches_per_rank=10, batch_size=4, num_replicas=8, global_batch=64
        ... )
        >>> cursor.epoch, cursor.offset, cursor.updates
        (2, 320, 74)
        """
        run = SamplerRun(
            length=length,
            num_replicas=num_replicas,
            batch_size=batch_size,
            drop_last=drop_last,
            dataloader_drop_last=dataloader_drop_last,
            accumulation_steps=accumulation_steps,
        )
        before = run.take_over(
            epoch=epoch, batches_per_rank=batches_per_rank, first_epoch=first_epoch, updates=updates, skipped=skipped
        )
        order = TorchShuffle(length, seed) if shuffle else Sequential(length)
        recipe = Recipe(
            order=order.describe(), global_batch=global_batch, tail=tail, normalize=normalize, fingerprint=fingerprint
        )
        return cls._from(before, recipe)

    @classmethod
    def from_consumed_samples(
        cls,
        order: Order,
        /,
        *,
        consumed_samples: int,
        global_batch: int,
        samples_per_epoch: int | None = None,
        updates: int | None = None,
        skipped: int = 0,
        tail: str = "carry",
        normalize: str = "samples",
        fingerprint: str | None = None,
    ) -> Cursor:
        """The cursor that continues a run which counted the samples it consumed, over all epochs and ranks.

        It is exact where the old run read `order` from its beginning, sample after sample over all ranks together.
        That, and the count, are taken on trust: the cursor holds no digest of it, and audits say so.

        Args:
            order: What the old run read, and the new one goes on with.
            consumed_samples: Samples in updates since the beginning of the run.
            global_batch: Samples of one update from here on, over all ranks.
            samples_per_epoch: Where the old run left out the end of each epoch: how many it read. All when None. The
                epoch under way is finished to its very end.
            updates: Optimizer steps that the old run took; ``consumed_samples / global_batch`` when None.
            skipped: How many of them a loss scaler skipped.
            tail: From here on, see `Schedule`.
            normalize: From here on, see `Recipe`.
            fingerprint: From here on, see `Recipe`.

        Raises:
            UsageError: An argument is outside its range.

        >>> cursor = Cursor.from_consumed_samples(Sequential(1000), consumed_samples=1280, global_batch=64)
        >>> cursor.epoch, cursor.offset, cursor.updates
        (1, 280, 20)
        """
        check_order(order)
        recipe = Recipe(
            order=order.describe(), global_batch=global_batch, tail=tail, normalize=normalize, fingerprint=fingerprint
        )
        before = take_over_consumed(
            length=len(order),
            consumed_samples=consumed_samples,
            global_batch=global_batch,
            samples_per_epoch=samples_per_epoch,
            updates=updates,
            skipped=skipped,
        )
        return cls._from(before, recipe)

    @classmethod
    def _from(cls, before: TakeOver, recipe: Recipe) -> Cursor:
        before = before.settled(recipe)
        counts = {name: value for name, value in msgspec.structs.asdict(before).items() if name != "source"}
        return cls(recipe=recipe, taken_over=before, **counts)


def _contradiction(expected: str, found: object) -> CorruptStateError:
    return CorruptStateError(
        f"expected a cursor with {expected}, found {found!r:.1000}. Nothing was loaded; the state was not written by "
        "this package, or was edited."
    )


# Made at import: its first use would otherwise take longer than all the rest of a resume.
_DECODER = msgspec.json.Decoder(Cursor)

"""Committed progress: a few exact integers, whatever the world size and the dataset's length."""

from __future__ import annotations

import msgspec

from resumable_data.cursor.coverage import CoverageSpan, add_span
from resumable_data.cursor.recipe import Recipe, RecipeChange
from resumable_data.errors import CorruptStateError, UsageError
from resumable_data.plan.schedule import Place, Schedule

CURSOR_VERSION = 1


class Migration(msgspec.Struct, frozen=True, array_like=True):
    """A declared change of the recipe, made before the update with index `update`, at `position`."""

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
        tokens: Target tokens of the committed samples, where their number is known ahead; else 0.
        epoch: Epoch of the next sample. The end of epoch e is (e + 1, 0).
        offset: Samples of `epoch` that are behind the cursor, in [0, N).
        padding: Rows committed that repeated a sample to fill an update (``tail="pad"``).
        dropped: Samples skipped at the ends of epochs (``tail="drop"``).
        batches: Batches committed, each of all ranks, in a run over a DataLoader and a DistributedSampler; else 0.
        migrations: Declared changes of the recipe, oldest first.
        coverage: Digests of what was delivered, of one or more spans of committed positions.
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

    @property
    def updates(self) -> int:
        """Updates committed, applied or skipped; the index of the next one."""
        return self.applied + self.skipped

    @property
    def next_index(self) -> int:
        """Index of the next update, or of the next batch where the run is counted by batches."""
        return self.batches if self.recipe.counts_batches else self.updates

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

    def advance(self, done: Committed, place: Place, *, run_id: str, attempt: int) -> Cursor:
        """The cursor after the updates `done`, which must be the next ones.

        Args:
            done: What they took.
            place: Where the next one starts.
            run_id: The run, see the attribute.
            attempt: The attempt that committed them.
        """
        advanced = place.epoch * self.recipe.length + place.offset - self.position
        return msgspec.structs.replace(
            self,
            run_id=run_id,
            attempt=attempt,
            applied=self.applied + done.applied,
            skipped=self.skipped + done.skipped,
            samples=self.samples + done.samples,
            tokens=self.tokens + done.tokens,
            epoch=place.epoch,
            offset=place.offset,
            padding=self.padding + done.padding,
            dropped=self.dropped + advanced - done.samples,
            batches=self.batches + done.batches,
        )

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
        edges = [edge for span in self.coverage for edge in (span.start, span.stop)]
        if edges != sorted(edges) or (edges and not 0 <= edges[0] <= edges[-1] <= self.position):
            raise _contradiction(f"digests of ascending spans of positions in [0, {self.position}]", self.coverage)
        if not all(0 <= lane < 1 << 64 for span in self.coverage for lane in span.lanes):
            raise _contradiction("digests of two 64-bit numbers", self.coverage)


def _contradiction(expected: str, found: object) -> CorruptStateError:
    return CorruptStateError(
        f"expected a cursor with {expected}, found {found!r:.1000}. Nothing was loaded; the state was not written by "
        "this package, or was edited."
    )


# Made at import: its first use would otherwise take longer than all the rest of a resume.
_DECODER = msgspec.json.Decoder(Cursor)

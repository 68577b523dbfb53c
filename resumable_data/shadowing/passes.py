"""From files to launches, and from iterations to passes over the data, through restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.shadowing.launch import STORE
from resumable_data.shadowing.reader import Values, read_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.shadowing.reader import Iteration, ShadowFile


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of the job.

    Attributes:
        number: From 1.
        num_replicas: Its ranks, as they say.
        files: Rank to file.
    """

    number: int
    num_replicas: int
    files: dict[int, ShadowFile]

    @property
    def num_iterations(self) -> int:
        """Iterations that were begun on some rank."""
        return max(len(file.iterations) for file in self.files.values())

    def iterations(self, number: int) -> dict[int, Iteration]:
        """One iteration on all ranks that began it."""
        return {rank: file.iterations[number] for rank, file in self.files.items() if number < len(file.iterations)}

    def saved(self) -> tuple[int, int] | None:
        """Iteration and batch of the last marked checkpoint; of the first rank with marks, as often only one saves."""
        for _, file in sorted(self.files.items()):
            marks = [(number, one.saved) for number, one in enumerate(file.iterations) if one.saved is not None]
            if marks:
                return marks[-1]
        return None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt read of a pass.

    Attributes:
        attempt: The attempt.
        iteration: Its iteration.
        stop: Batches that count, where the rest was lost in the restart; None for all.
    """

    attempt: Attempt
    iteration: int
    stop: int | None = None

    @property
    def ranks(self) -> dict[int, Iteration]:
        """The iteration on each rank."""
        return self.attempt.iterations(self.iteration)

    @property
    def label(self) -> int | None:
        """The sampler's epoch, where all ranks agree on it."""
        labels = {one.begin.label for one in self.ranks.values()}
        return labels.pop() if len(labels) == 1 else None

    @property
    def has_end(self) -> bool:
        """Whether all ranks came to the end of the iteration, and none of it was lost."""
        ranks = self.ranks
        is_whole = len(ranks) == self.attempt.num_replicas and all(one.is_whole for one in ranks.values())
        return is_whole and (self.stop is None or all(one.num_batches <= self.stop for one in ranks.values()))

    @property
    def is_last(self) -> bool:
        """Whether the attempt began no iteration after it that counts."""
        return self.stop is not None or self.iteration == self.attempt.num_iterations - 1

    @property
    def is_hashed(self) -> bool:
        """Whether rows are known by their contents only."""
        return any(one.num_hashed for one in self.ranks.values())

    def read(self) -> SegmentRows:
        """All rows of all ranks that count."""
        parts = []
        for rank, one in sorted(self.ranks.items()):
            values = read_values(self.attempt.files[rank], self.iteration)
            stop = one.num_batches if self.stop is None else min(self.stop, one.num_batches)
            counted = values.batch < stop
            parts.append(Values(values.value[counted], stop - 1 - values.batch[counted]))
        value = np.concatenate([part.value for part in parts])
        return SegmentRows(value, np.concatenate([part.batch for part in parts]))


class SegmentRows(NamedTuple):
    """Rows of all ranks in one segment.

    Attributes:
        value: (n,) uint64, IDs or hashes.
        from_end: (n,) int64, how many batches the rank read after it in the segment.
    """

    value: np.ndarray[tuple[int], np.dtype[np.uint64]]
    from_end: np.ndarray[tuple[int], np.dtype[np.int64]]


class Pass(msgspec.Struct, frozen=True):
    """One epoch: what was read of it before and after restarts.

    Attributes:
        segments: In order of time, at least one.
    """

    segments: list[Segment]

    @property
    def has_end(self) -> bool:
        """Whether it was read to its end."""
        return self.segments[-1].has_end

    @property
    def label(self) -> int | None:
        """The sampler's epoch, as far as known."""
        return next((one.label for one in self.segments if one.label is not None), None)

    @property
    def is_hashed(self) -> bool:
        """Whether some rows are known by their contents only."""
        return any(segment.is_hashed for segment in self.segments)

    @property
    def is_mixed(self) -> bool:
        """Whether some are known by their contents and others by their IDs: they cannot be compared."""
        batches = [one for segment in self.segments for one in segment.ranks.values() if one.num_batches]
        return len({one.num_hashed > 0 for one in batches} | {one.num_hashed == one.num_batches for one in batches}) > 1

    def extent(self) -> tuple[int | None, int, int]:
        """Samples of an epoch where that is known, rows of padding, and rows that may be dropped."""
        begins = [one.begin for segment in self.segments for one in segment.ranks.values()]
        known = {begin.num_samples for begin in begins if begin.num_samples is not None}
        last = self.segments[-1].ranks.values()
        padding = max((begin.padding for begin in begins), default=0)
        return (known.pop() if len(known) == 1 else None, padding, sum(one.begin.droppable for one in last))


def group_attempts(files: Sequence[ShadowFile]) -> list[Attempt]:
    """The launches that files are of, oldest first.

    Ranks of one launch share its token. Where launches could not be told apart by it, a new one begins where a rank
    comes for a second time, or another number of ranks.
    """
    by_token: dict[tuple[str, int], list[ShadowFile]] = {}
    for file in files:
        by_token.setdefault((file.header.launch, file.header.num_replicas), []).append(file)
    groups: list[dict[int, ShadowFile]] = []
    for (token, _), members in by_token.items():
        members.sort(key=lambda file: file.header.start_ns)
        own: list[dict[int, ShadowFile]] = []
        for file in members:
            if (
                not own
                or file.header.rank in own[-1]
                or (not token.startswith(STORE) and _lies_between(files, own[-1], file))
            ):
                own.append({})
            own[-1][file.header.rank] = file
        groups += own
    groups.sort(key=lambda group: min(file.header.start_ns for file in group.values()))
    return [
        Attempt(number=number, num_replicas=next(iter(group.values())).header.num_replicas, files=group)
        for number, group in enumerate(groups, 1)
    ]


def _lies_between(files: Sequence[ShadowFile], group: dict[int, ShadowFile], file: ShadowFile) -> bool:
    """Whether a launch with another number of ranks began after `group` and before `file`."""
    last = max(one.header.start_ns for one in group.values())
    return any(
        last < one.header.start_ns < file.header.start_ns and one.header.num_replicas != file.header.num_replicas
        for one in files
    )


def find_passes(attempts: Sequence[Attempt]) -> list[Pass]:
    """The passes over the data, oldest first.

    A new attempt goes on with the pass of the same epoch, where samplers say which it is, else with the pass that the
    one before it did not finish. Where checkpoints are marked, what came after the last mark before a restart was lost.
    """
    trusts_labels = _trusts_labels(attempts)
    passes: list[Pass] = []
    for attempt in attempts:
        if attempt.number > 1:
            _cut(passes, attempts[attempt.number - 2])
        for iteration in range(attempt.num_iterations):
            segment = Segment(attempt=attempt, iteration=iteration)
            is_empty = not any(one.num_batches for one in segment.ranks.values())
            if is_empty and not segment.has_end and not segment.is_last:
                continue  # begun, and left before its first batch
            found = _continued(passes, segment, trusts_labels)
            if found is None:
                passes.append(Pass([segment]))
            else:
                found.segments.append(segment)
    return passes


def _trusts_labels(attempts: Sequence[Attempt]) -> bool:
    """Whether samplers' epochs tell passes apart: a script that never calls set_epoch has the same one for ever."""
    for attempt in attempts:
        labels = [Segment(attempt=attempt, iteration=one).label for one in range(attempt.num_iterations)]
        known = [label for label in labels if label is not None]
        if len(known) != len(labels) or known != sorted(set(known)):
            return False
    return True


def _continued(passes: list[Pass], segment: Segment, trusts_labels: bool) -> Pass | None:
    """The pass that a segment goes on with, None where it begins one."""
    if trusts_labels:
        of_label = [one for one in passes if one.label == segment.label]
        attempt = segment.attempt
        # With one iteration each, equal labels may be a script that never calls set_epoch.
        is_sure = attempt.num_iterations > 1 or len({one.label for one in passes}) > 1
        return of_label[-1] if of_label and (is_sure or not of_label[-1].has_end) else None
    is_first = segment.iteration == 0 and bool(passes) and passes[-1].segments[-1].attempt is not segment.attempt
    return passes[-1] if is_first and not passes[-1].has_end and passes[-1].segments[-1].is_last else None


def lost_rows(attempt: Attempt) -> int:
    """Rows that an attempt, which was restarted, read after its last marked checkpoint."""
    saved = attempt.saved()
    if saved is None:
        return 0
    lost = 0
    for iteration in range(saved[0], attempt.num_iterations):
        stop = saved[1] if iteration == saved[0] else 0
        rows = Segment(attempt=attempt, iteration=iteration, stop=stop).read().value.size
        lost += sum(one.num_rows for one in attempt.iterations(iteration).values()) - rows
    return lost


def _cut(passes: list[Pass], attempt: Attempt) -> None:
    """Leave out what an attempt read after its last marked checkpoint."""
    saved = attempt.saved()
    if saved is None:
        return
    for one in passes:
        for at, segment in enumerate(one.segments):
            if segment.attempt is attempt and segment.iteration >= saved[0]:
                stop = saved[1] if segment.iteration == saved[0] else 0
                one.segments[at] = Segment(attempt=attempt, iteration=segment.iteration, stop=stop)
    for one in passes:
        one.segments[:] = [segment for segment in one.segments if segment.stop != 0]
    passes[:] = [one for one in passes if one.segments]

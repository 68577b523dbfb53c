"""One rank's file against what the rules say it holds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.audit.branch import PARTS_MAX
from resumable_data.audit.findings import Issue
from resumable_data.audit.inside import TakenPart
from resumable_data.audit.rank_result import Change, RankResult
from resumable_data.audit.rows import digests, expand
from resumable_data.audit.timeline import earliest_rewind, reached_position, step_stops, surviving_jumps
from resumable_data.audit.unreadable import read_unreadable
from resumable_data.cursor import CoverageSpan
from resumable_data.ledger.columns import gather

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from resumable_data.audit.branch import Branch
    from resumable_data.audit.updates import Shares
    from resumable_data.ledger.columns import Commits, Deliveries
    from resumable_data.ledger.reader import RankLog
    from resumable_data.ledger.records import Jump

    Vector = NDArray[np.int64]
    Mask = NDArray[np.bool_]


_SHOWN = 4
_BLOCK_RECORDS = 1 << 12
_UNSEEN_MAX = 1 << 22  # microbatches


def audit_rank(log: RankLog | None, rank: int, branch: Branch) -> RankResult:
    """Hold one rank's file against its share of a branch; None stands for a file that is missing."""
    return _RankAudit(rank, branch).run(log)


class _RankAudit:
    def __init__(self, rank: int, branch: Branch) -> None:
        self._rank = rank
        self._branch = branch
        self._first = branch.course.first_update
        self._result = RankResult(known_stop=self._first)
        sizes = branch.totals.num_microbatches
        if branch.handed_on is not None:
            sizes = np.append(sizes, branch.handed_on.of_microbatches)
        self._num_microbatches = sizes
        self._key_base = np.cumsum(sizes) - sizes  # the key of each update's first microbatch
        self._found = np.empty(0, np.bool_)  # by key, once the file is believed
        self._last = (0, 0)  # update and index of the newest delivery that survives

    def run(self, log: RankLog | None) -> RankResult:
        self._result.is_missing = log is None
        if log is not None:
            self._check_agreements(log)
            self._result.saved = int(log.saved.max(initial=-1))
            self._check_commits(log)
            self._check_jumps(log)
        if log is None or self._is_hollow(log):
            self._give_up(log)
        else:
            self._found = np.zeros(int(self._num_microbatches.sum()), np.bool_)
            self._taken_part = TakenPart(self._rank, self._branch)
            self._check_deliveries(log)
            self._check_missing(has_end=log.has_end)
        return self._result

    def _is_hollow(self, log: RankLog) -> bool:
        """Whether most of what should be in the file is not: numbers alone must not decide how much is counted."""
        expected = float(self._num_microbatches.sum(dtype=np.float64))
        if expected <= _UNSEEN_MAX:
            return False
        held = sum(int(np.minimum(block.parts, PARTS_MAX).sum()) for block in log.deliveries())
        return expected > _UNSEEN_MAX + 2 * held

    def _give_up(self, log: RankLog | None) -> None:
        """Of a file that is missing or hollow, all that it should tell about is lost."""
        result, branch = self._result, self._branch
        result.lost, result.lost_inside = branch.samples_of(self._rank), branch.handed_on_by(self._rank)
        if log is None:
            return
        for records in log.deliveries():
            result.delivered += int((records.count - np.minimum(records.padding, records.count)).sum())
        stop = max(min(branch.stop_update, result.known_stop), self._first + 1)
        expected = f"{self._num_microbatches.sum(dtype=np.float64):.0f} microbatches"
        self._issue("RD201", expected, "a small part of them", [self._first, stop - 1])

    def _check_agreements(self, log: RankLog) -> None:
        """A digest that ranks agreed on ends where the update at the cursor starts."""
        branch = self._branch
        agreed = [one for one in log.agreements if one.update <= branch.stop_update]
        wrong = [
            one
            for one in agreed
            if one.update < self._first or not one.start <= one.stop == branch.position_before(one.update)
        ]
        if wrong:
            first = wrong[0]
            expected = f"a digest of positions up to where {branch.word} {first.update} starts"
            found = f"one of positions [{first.start}, {first.stop})"
            self._issue("RD207", expected, found, [one.update for one in wrong])
        spans = (CoverageSpan(one.start, one.stop, (one.lane_0, one.lane_1)) for one in agreed if one not in wrong)
        self._result.agreements = frozenset(spans)

    def _check_commits(self, log: RankLog) -> None:
        result, commits, word = self._result, log.commits, self._branch.word
        result.stops = stops = step_stops(log, self._branch.claim)
        result.applied = commits.applied[: stops.size]
        result.known_stop = next_one = int(stops[-1]) if stops.size else self._first
        if stops.size < commits.update.size:
            update = int(commits.update[stops.size])
            expected = f"a commit of {word} {next_one}"
            if self._branch.counts_batches:
                expected += " or of a later one, with its deliveries"
            self._issue("RD301", expected, f"one of {word} {update}", [update])

    def _check_jumps(self, log: RankLog) -> None:
        stop = min(self._branch.stop_update, self._result.known_stop)
        found = surviving_jumps(log, stop)
        expected = [jump for jump in self._branch.course.jumps if jump.update < stop]
        if found != expected:
            wrong = sorted({jump.update for jump in (*found, *expected)})
            self._issue("RD305", _describe_jumps(expected), _describe_jumps(found), wrong)

    def _check_deliveries(self, log: RankLog) -> None:
        """Follow the file's deliveries, block after block; set `_found` for each expected microbatch that is there."""
        earliest_rewind = self._earliest_rewind(log)
        first = 0
        # blocks of a few hundred long records would cost more for numpy's calls than for its work
        for records in gather(log.deliveries(), _BLOCK_RECORDS):
            places = np.arange(first, first + len(records))
            self._check_block(log, records, places, earliest_rewind(places))
            first += len(records)

    def _check_block(self, log: RankLog, records: Deliveries, places: Vector, earliest_rewind: Vector) -> None:
        """Check deliveries at `places` (n,) int64 in the file; the last of them that a rewind discards are known."""
        result = self._result
        rows = records.count - np.minimum(records.padding, records.count)
        rewound: Mask = earliest_rewind <= records.update
        taken, again = self._taken_part.find(records, rewound)
        rewound &= ~taken
        beyond = ~(rewound | taken | again) & (records.update >= self._branch.stop_update)
        result.delivered += int(rows.sum())
        result.reached = max(result.reached, reached_position(records))
        result.rewound += int(rows[rewound].sum())
        handed_on = self._taken_part.num_samples(records, taken)
        result.handed_on += handed_on
        result.beyond += int(rows[beyond].sum()) + int(rows[taken].sum()) - handed_on
        survives = ~(rewound | beyond)
        self._check_unreadable(log, records, places, survives)
        self._check_sequence(log.commits, places[survives], records.take(survives))
        records = records.take(survives)
        records = records.take(self._check_possible(records))
        extra = records.take(~self._match(records))
        self._change(extra.start, extra.stride, extra.count - extra.padding, 1)
        self._check_filler(records)
        self._check_digests(records, self._key_of(log))

    def _earliest_rewind(self, log: RankLog) -> Callable[[Vector], Vector]:
        """For places in the file, the earliest update that a later rewind goes back to."""
        rewinds, stops = log.rewinds, self._result.stops
        committed = np.append(self._first, stops)[np.minimum(rewinds.after_commits, stops.size)]
        is_good = rewinds.update >= committed
        if not is_good.all():
            where = int(np.argmin(is_good))
            self._issue(
                "RD303",
                f"a rewind to {self._branch.word} {int(committed[where])} or later, the first one not committed",
                f"one to {self._branch.word} {int(rewinds.update[where])}",
                rewinds.update[~is_good],
            )
        return partial(earliest_rewind, rewinds.after[is_good], rewinds.update[is_good])

    def _check_sequence(self, commits: Commits, places: Vector, records: Deliveries) -> None:
        """Deliveries ascend, and come before the commit of their update; places: (k,) int64 in the file."""
        last_update, last_index = self._last
        update, index = np.append(last_update, records.update), np.append(last_index, records.index)
        self._last = int(update[-1]), int(index[-1])
        descends = (np.diff(update) < 0) | ((np.diff(update) == 0) & (np.diff(index) < 0))
        update = update[1:]
        committed = (update >= self._first) & (update < self._result.known_stop)
        step = np.searchsorted(self._result.stops, update[committed], side="right")
        late = places[committed] >= commits.after[step]
        updates = np.concatenate((update[descends], update[committed][late]))
        if updates.size:
            self._issue(
                "RD205",
                f"microbatches one after another, each before the commit of its {self._branch.word}",
                f"one of {self._branch.word} {int(updates[0])} after a later one, or after the commit",
                updates,
            )

    def _check_possible(self, records: Deliveries) -> Mask:
        """Which records hold numbers that a run can reach: (n,) bool."""
        microbatch, possible = self._branch.claim.microbatch, self._branch.is_possible(records)
        if not possible.all():
            where = int(np.argmin(possible))
            self._result.unverified += int(np.minimum(records.count[~possible], microbatch).sum())
            self._issue(
                "RD207",
                f"{self._branch.word} {self._first} or later, with at most {microbatch} rows, within one of them",
                self._describe(records, where),
                records.update[~possible],
            )
        return possible

    def _match(self, records: Deliveries) -> Mask:
        """Which records are what was expected, each microbatch once: (n,) bool."""
        number = records.update - self._first
        known_index = records.index + records.parts <= self._num_microbatches[number]
        index = np.where(known_index, records.index, 0)
        share = self._branch.shares(self._rank, records.update, index, np.where(known_index, records.parts, 1))
        fits = known_index & self._branch.fits(records, share)
        if not fits.all():
            self._report_misfits(records, share, fits, known_index)
        is_first: Mask = fits.copy()
        is_first[fits] = self._find(self._key_base[number[fits]] + index[fits], records.parts[fits])
        repeats = fits & ~is_first
        if repeats.any():
            where = int(np.argmax(repeats))
            found = self._describe(records, where) + " again"
            self._issue("RD202", "each microbatch once", found, records.update[repeats])
        return is_first

    def _find(self, key: Vector, parts: Vector) -> Mask:
        """Set `_found` for microbatches [key, key + parts); whether none of a record's was found before: (k,) bool."""
        owner = np.repeat(np.arange(key.size), parts)
        keys = expand(key, np.ones_like(key), parts)
        if (keys[1:] > keys[:-1]).all() and not self._found[keys].any():  # as it should be, and quick
            self._found[keys] = True
            return np.ones(key.shape, np.bool_)
        is_first = np.zeros(keys.shape, np.bool_)
        is_first[np.unique(keys, return_index=True)[1]] = True
        is_first &= ~self._found[keys]
        is_new = np.ones(key.shape, np.bool_)
        is_new[owner[~is_first]] = False
        self._found[keys[is_new[owner]]] = True
        return is_new

    def _report_misfits(self, records: Deliveries, share: Shares, fits: Mask, known_index: Mask) -> None:
        where = int(np.argmin(fits))
        number = records.update - self._first
        expected = f"an index below {int(self._num_microbatches[number[where]])}"
        if known_index[where]:
            expected = (
                f"{int(share.num_rows[where])} rows from position {int(share.start[where])} in steps of "
                f"{self._branch.claim.num_replicas}, {int(share.padding[where])} of them padding"
            )
        self._issue("RD203", expected, self._describe(records, where), records.update[~fits])

    def _check_filler(self, records: Deliveries) -> None:
        room = np.where(records.parts == 1, np.maximum(self._branch.claim.microbatch - records.count, 0), 0)
        bad = (records.filler > room) | ((records.count == 0) & (records.filler == 0))
        if bad.any():
            where = int(np.argmax(bad))
            expected = f"at most {int(room[where])} filler rows, and one at least where there is no other row"
            found = f"{int(records.filler[where])} filler rows in {self._describe(records, where)}"
            self._issue("RD206", expected, found, records.update[bad])

    def _check_unreadable(self, log: RankLog, records: Deliveries, places: Vector, survives: Mask) -> None:
        if not (len(log.unreadable) and places.size):
            return
        branch, after = self._branch, log.unreadable.after
        rows = log.unreadable.take((after >= places[0]) & (after <= places[-1]))
        held = records.take(rows.after - places[0])
        rows, held = rows.take(survives[rows.after - places[0]]), held.take(survives[rows.after - places[0]])
        samples, impossible = read_unreadable(rows, held, rank=self._rank, branch=branch)
        self._result.unreadable += samples
        if len(impossible):
            position, sample_id = int(impossible.position[0]), int(impossible.id[0])
            found = f"{branch.word} {int(impossible.update[0])}, sample {sample_id} at position {position}"
            expected = "a row of the microbatch recorded next, with the order's ID"
            self._issue("RD208", expected, found, impossible.update)

    def _key_of(self, log: RankLog) -> int | None:
        """What the file's digests are keyed with, 0 for nothing; None where it is not known."""
        is_keyed = log.header is not None and log.header.key_check != 0
        return (self._branch.key or None) if is_keyed else 0

    def _check_digests(self, records: Deliveries, key: int | None) -> None:
        """Recompute each record's digest from the order."""
        branch = self._branch
        if branch.order is None or key is None:
            return
        records = records.take(records.count > 0)
        wrap_at = branch.wrap_at(records.update)
        expected = digests(branch.order, records.start, records.stride, records.count, wrap_at, key)
        differs = expected != records.digest
        if differs.any():
            where = int(np.argmax(differs))
            self._result.unverified += int((records.count - records.padding)[differs].sum())
            self._issue(
                "RD204",
                f"digest {int(expected[where]):016x}, of the order's IDs",
                f"{int(records.digest[where]):016x} in {self._describe(records, where)}",
                records.update[differs],
            )

    def _check_missing(self, *, has_end: bool) -> None:
        """Expected microbatches without a record: never delivered, or lost with the rest of the file."""
        keys, part = np.flatnonzero(~self._found), self._branch.handed_on
        if part is not None:  # what the next attempt did not take over is expected of that one
            keys = keys[keys < self._key_base[-1] + part.num_microbatches]
        if not keys.size and self._result.known_stop >= self._branch.stop_update:
            return
        number = np.searchsorted(self._key_base, keys, side="right") - 1
        update = number + self._first
        share = self._branch.shares(self._rank, update, keys - self._key_base[number])
        num_samples = share.num_rows - share.padding
        is_known, inside = update < self._result.known_stop, update >= self._branch.stop_update
        is_known[inside] = has_end | (keys[inside] - self._key_base[-1] < self._taken_part.reached)
        self._result.lost = int(num_samples[~is_known & ~inside].sum())
        self._result.lost_inside = int(num_samples[~is_known & inside].sum())
        self._report_not_handed_on(update, is_known, inside)
        if (is_known & ~inside).any():
            where = int(np.argmax(is_known & ~inside))
            expected = f"{int(share.num_rows[where])} rows from position {int(share.start[where])}"
            found = "no record of them, and later ones that are whole"
            self._issue("RD201", expected, found, update[is_known & ~inside])
        stride = np.full(keys.size, self._branch.claim.num_replicas, np.int64)
        self._change(share.start[is_known], stride[is_known], num_samples[is_known], -1)

    def _report_not_handed_on(self, update: Vector, is_known: Mask, inside: Mask) -> None:
        """What the next attempt took over, and this rank's file does not hold."""
        part = self._branch.handed_on
        if part is None:
            return
        expected = (
            f"{part.num_microbatches} microbatches of {self._branch.word} {part.update}, rows {part.first_row} to "
            f"{part.stop_row - 1} on all ranks, which the next attempt went on with"
        )
        for code, which in (("RD306", is_known & inside), ("RD106", ~is_known & inside)):
            if which.any():
                self._issue(code, expected, f"no record of {int(which.sum())} of them", update[which])

    def _change(self, start: Vector, stride: Vector, count: Vector, sign: int) -> None:
        holds = count > 0
        if holds.any():
            self._result.changes.append(Change(start[holds], stride[holds], count[holds], sign))

    def _issue(self, code: str, expected: str, found: str, updates: Vector | list[int]) -> None:
        first, last, count = int(np.min(updates)), int(np.max(updates)), len(updates)
        self._result.issues.append(Issue(code, self._rank, expected, found, count, first, last))

    def _describe(self, records: Deliveries, where: int) -> str:
        what = f"{self._branch.word} {int(records.update[where])}"
        if not self._branch.counts_batches:
            what += f", microbatch {int(records.index[where])}"
            what += f" and {int(records.parts[where]) - 1} more" if records.parts[where] > 1 else ""
        return (
            f"{what}: {int(records.count[where])} rows from position {int(records.start[where])} in steps of "
            f"{int(records.stride[where])}, {int(records.padding[where])} of them padding"
        )


def _describe_jumps(jumps: list[Jump]) -> str:
    places = ", ".join(f"position {jump.position} at batch {jump.update}" for jump in jumps[:_SHOWN])
    return f"jumps to {places}{' ...' if len(jumps) > _SHOWN else ''}" if jumps else "no jump"

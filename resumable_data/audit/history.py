"""Which attempts make up the surviving history: the chain of parents of the newest one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

from resumable_data.audit.findings import finding
from resumable_data.audit.packed import find_rows, is_near
from resumable_data.audit.replay import check_successor, is_reachable, replay_cursor
from resumable_data.audit.updates import Stretch
from resumable_data.errors import LedgerCorruptError, LedgerError, UsageError
from resumable_data.findings import Finding
from resumable_data.ledger.frames import measure, shown
from resumable_data.ledger.layout import CLAIM_NAME, AttemptFiles, attempt_name, list_attempt, list_attempts
from resumable_data.ledger.reader import read_claim

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.audit.packed import Packed, PackedRows
    from resumable_data.cursor import Cursor
    from resumable_data.ledger import Claim

NUM_UPDATES_MAX = 1 << 27
_UNSEEN_UPDATES_MAX = 1 << 22
_UNSEEN_RANKS_MAX = 1 << 17
_COMMIT_BYTES = 16  # a frame of the smallest commit
_ROWS_PER_BYTE = 16  # of packed rows, folded ones too: more than any record tells of
_HEADER_BYTES = 1 << 10
_POSITION_MAX = 1 << 61
BATCH_ROWS_MAX = 1 << 34  # times the one above, positions still fit int64


class Attempt(msgspec.Struct, frozen=True):
    """One claimed attempt: its claim and its files."""

    claim: Claim
    files: AttemptFiles


class History(msgspec.Struct, frozen=True):
    """All attempts of a ledger.

    Attributes:
        attempts: By number, oldest first.
        chain: Numbers of the surviving ones, oldest first.
        is_whole: Whether the chain goes back to the beginning of the run, or to where it was taken over.
        findings: What is wrong with it.
        rows: Of a run over packed rows, these.
    """

    attempts: dict[int, Attempt]
    chain: list[int]
    is_whole: bool
    findings: list[Finding] = msgspec.field(default_factory=list)
    rows: PackedRows | None = None

    @property
    def newest(self) -> Attempt:
        """The newest attempt."""
        return self.attempts[self.chain[-1]]

    def next_start(self, number: int) -> Cursor | None:
        """The cursor at which the surviving attempt after this one started; None for the newest, and for dead ones."""
        if number not in self.chain or number == self.chain[-1]:
            return None
        return self.attempts[self.chain[self.chain.index(number) + 1]].claim.start

    def taken_over_after(self, number: int) -> int:
        """Rows of an unfinished update that the surviving attempt after this one took over from it; 0 for none.

        Where several launches went on inside the same update, those that all of them took over.
        """
        later = self.chain[self.chain.index(number) + 1 :] if number in self.chain else []
        claims = [self.attempts[one].claim for one in later]
        if not claims or claims[0].inside is None or claims[0].inside.attempt != number:
            return 0
        inside = [one.inside for one in claims if one.start.next_index == claims[0].start.next_index]
        return min(0 if one is None else one.samples for one in inside)

    def is_provided(self, number: int) -> bool:
        """Whether what an attempt took over of an update was delivered by another one of the surviving history."""
        inside = self.attempts[number].claim.inside
        return inside is not None and inside.attempt in self.chain[: self.chain.index(number)]


def read_history(root: Path, packed: Packed | None = None, *, needs_rows: bool = True) -> History:
    """Read all claims of a ledger.

    Args:
        root: The ledger's directory.
        packed: The rows of a run that read packed tokens.
        needs_rows: Whether these have to be given for such a run. Without them its start cursors are not held against
            each other, and the history has no rows.

    Raises:
        UsageError: The run read packed rows, and they are not given, or others; or it did not.
        LedgerCorruptError: A claim is damaged, or something in the ledger is no regular file.
        LedgerError: There is no ledger at `root`, or nothing was ever claimed in it.
    """
    directories, unknown = list_attempts(root)
    findings = [_unknown(path) for path in unknown]
    attempts: dict[int, Attempt] = {}
    for number, directory in directories.items():
        files = list_attempt(number, directory)
        findings += [_unknown(path) for path in files.unknown]
        if files.has_claim:
            attempts[number] = Attempt(_read_own_claim(files), files)
        elif files.ranks or files.peers:
            found = f"{len(files.ranks) + len(files.peers)} rank files alone"
            where = shown(directory)
            findings.append(finding("RD102", where, expected="a claim beside rank files", found=found, attempt=number))
    if not attempts:
        raise LedgerError(
            f"expected a ledger at {shown(root)}, found no attempt in it. Nothing can be said about the data; give the "
            "path that the loader got as ledger=."
        )
    findings += _missing_numbers(directories, attempts)
    chain, is_whole = _follow(attempts, findings)
    _require_told(attempts, chain)
    recipe = attempts[chain[-1]].claim.start.recipe
    if recipe.is_packed and packed is None and not needs_rows:
        return History(attempts, chain, is_whole, findings)
    rows = find_rows(recipe, packed)
    if rows is not None:
        _limit_rows(rows, attempts, chain)
    _check_chain(attempts, chain, rows, findings)
    return History(attempts, chain, is_whole, findings, rows)


def _read_own_claim(files: AttemptFiles) -> Claim:
    path = files.path / CLAIM_NAME
    claim = read_claim(path)
    if claim.attempt != files.number:
        raise LedgerCorruptError(
            f"{shown(path)}: expected the claim of attempt {files.number}, found that of attempt {claim.attempt}. "
            "Directories were renamed or mixed up, so nothing was audited; restore them from a copy."
        )
    if not is_reachable(claim.start) or claim.start.attempt < 0:
        raise _unreachable(path, claim.start)
    try:
        schedule = claim_stretch(claim).schedule
    except UsageError as error:
        raise LedgerCorruptError(
            f"{shown(path)}: expected the recipe and ranks of a run, found some that none can have: {error} Nothing "
            "was audited; restore the file from a copy."
        ) from None
    if claim.num_replicas - len(files.ranks) > _UNSEEN_RANKS_MAX:
        raise LedgerCorruptError(
            f"{shown(path)}: expected at most {_UNSEEN_RANKS_MAX} rank files to be missing, found {len(files.ranks)} "
            f"for {claim.num_replicas} ranks. Nothing was audited; restore the files from a copy."
        )
    if claim.start.recipe.counts_batches and schedule.global_batch > BATCH_ROWS_MAX:
        raise LedgerCorruptError(
            f"{shown(path)}: expected at most {BATCH_ROWS_MAX} rows in a batch of all ranks, found "
            f"{schedule.global_batch}. Nothing was audited; restore the file from a copy."
        )
    return claim


def _limit_rows(rows: PackedRows, attempts: dict[int, Attempt], chain: list[int]) -> None:
    """Plan no more rows than the attempts' starts, and the sizes of their files, speak for.

    Raises:
        LedgerCorruptError: A start is one that no run reaches.
    """
    for number in chain:
        if not is_near(rows, attempts[number].claim.start):
            raise _unreachable(attempts[number].files.path / CLAIM_NAME, attempts[number].claim.start)
    files = [path for attempt in attempts.values() for path in attempt.files.ranks.values()]
    num_bytes = sum(measure(path)[0] for path in files) + _HEADER_BYTES
    rows.limit = max(attempts[number].claim.start.position for number in chain) + _ROWS_PER_BYTE * num_bytes


def _unreachable(path: Path, start: Cursor) -> LedgerCorruptError:
    return LedgerCorruptError(
        f"{shown(path)}: expected the cursor of a run, found numbers that no run reaches: {start}. Nothing was "
        "audited; restore the file from a copy."
    )


def claim_stretch(claim: Claim, rows: PackedRows | None = None) -> Stretch:
    """The attempt's updates, from its start cursor on; of a run over packed rows, given these."""
    start = claim.start
    return Stretch(
        recipe=start.recipe,
        epoch=start.epoch,
        offset=start.offset,
        first_update=start.next_index,
        epochs=claim.epochs,
        num_replicas=claim.num_replicas,
        microbatch=claim.microbatch,
        rows=rows,
    )


def _unknown(path: Path) -> Finding:
    return finding("RD101", shown(path), expected="attempts, claims and rank files only", found=shown(path.name))


def _missing_numbers(directories: dict[int, Path], attempts: dict[int, Attempt]) -> list[Finding]:
    newest = max(attempts)
    missing = newest - sum(number <= newest for number in directories)
    if not missing:
        return []
    first = next(number for number in range(1, newest + 1) if number not in directories)
    expected = f"attempts 1 to {newest}"
    found = f"no {attempt_name(first)}" + (f" and {missing - 1} more" if missing > 1 else "")
    return [finding("RD103", "ledger", expected=expected, found=found)]


def _follow(attempts: dict[int, Attempt], findings: list[Finding]) -> tuple[list[int], bool]:
    """The chain of parents of the newest attempt, oldest first, and whether it reaches the beginning."""
    chain = [max(attempts)]
    while parent := attempts[chain[0]].claim.parent:
        child = chain[0]
        if parent >= child:
            found = f"attempt {parent}"
            findings.append(
                finding("RD401", f"attempt {child}", expected="a parent that is older", found=found, attempt=child)
            )
            return chain, False
        if parent not in attempts:
            found = f"no claim of attempt {parent}"
            findings.append(
                finding("RD104", f"attempt {child}", expected=f"attempt {parent}", found=found, attempt=child)
            )
            return chain, False
        chain.insert(0, parent)
    root = attempts[chain[0]].claim.start
    return chain, root.updates == (root.taken_over.updates if root.taken_over else 0)


def _check_chain(
    attempts: dict[int, Attempt], chain: list[int], rows: PackedRows | None, findings: list[Finding]
) -> None:
    """Each attempt is of the newest one's run, and each start cursor follows from the attempt before it."""
    run_id = attempts[chain[-1]].claim.run_id
    for number, attempt in attempts.items():
        if attempt.claim.run_id != run_id:
            where, expected = f"attempt {number}", f"run {shown(run_id)}, that of attempt {chain[-1]}"
            found = f"run {shown(attempt.claim.run_id)}"
            findings.append(finding("RD111", where, expected=expected, found=found, attempt=number))
    root = attempts[chain[0]].claim
    where = f"attempt {chain[0]}, start cursor"
    if not root.start.has_counted_batches:
        _, contradictions = replay_cursor(root.start, rows)
        findings += [_placed(one, where, chain[0]) for one in contradictions]
    for parent, child in itertools.pairwise(chain):
        before, after = attempts[parent].claim, attempts[child].claim
        where = f"attempt {child}, start cursor"
        broken = check_successor(before.start, after.start, epochs=before.epochs, where=where, rows=rows)
        broken += _check_inside(before, after, where)
        # a run has no ID in its cursor before it commits, and may be taken on inside its very first update
        expected_ids = {run_id} | ({""} if after.inside is not None and after.start.attempt == 0 else set())
        if after.start.run_id not in expected_ids:
            found = f"run {shown(after.start.run_id)}"
            broken.append(finding("RD401", where, expected=f"run {shown(run_id)}", found=found))
        findings += [_placed(one, where, child) for one in broken]


def _require_told(attempts: dict[int, Attempt], chain: list[int]) -> None:
    """Make sure that no attempt has more updates than its files can tell of: all of them are counted.

    Raises:
        LedgerError: The next one's start cursor says that one has.
    """
    for parent, child in itertools.pairwise(chain):
        before, after = attempts[parent].claim.start, attempts[child].claim.start
        unit = "batches" if before.recipe.counts_batches else "updates"
        number = getattr(after, unit) - getattr(before, unit)
        most = _num_updates_max(attempts[parent].files)
        if number > most:
            raise LedgerError(
                f"attempt {parent}: expected at most {most} {unit}, of which its files can tell; attempt {child} "
                f"starts after {number}. Nothing was audited; restore the files from a copy."
            )


def _check_inside(before: Claim, after: Claim, where: str) -> list[Finding]:
    """A launch that goes on inside an update goes on from the attempt that committed last, or from one after it.

    Such a one committed nothing of what it goes on from: it starts at the same cursor.
    """
    inside = after.inside
    if inside is None or not inside.attempt or inside.attempt == after.start.attempt:
        return []
    if inside.attempt > after.start.attempt and before.start == after.start:
        return []
    expected = f"a part of an update that attempt {after.start.attempt}, which committed last, or a later one delivered"
    found = f"one of attempt {inside.attempt}, which starts at update {before.start.updates}"
    return [finding("RD401", where, expected=expected, found=found)]


def _num_updates_max(files: AttemptFiles) -> int:
    """How many updates an attempt is believed to have: what the largest of its files has room for."""
    largest = max((measure(path)[0] for path in files.ranks.values()), default=0)
    return min(max(_UNSEEN_UPDATES_MAX, largest // _COMMIT_BYTES), NUM_UPDATES_MAX)


def require_room(claim: Claim, stop_update: int) -> None:
    """Make sure that positions up to an update can be counted in int64; any real run's can.

    Raises:
        LedgerCorruptError: They cannot.
    """
    start, batch = claim.start, claim_stretch(claim).batch
    if start.position + (stop_update - start.next_index + 1) * batch > _POSITION_MAX:
        raise LedgerCorruptError(
            f"attempt {claim.attempt}: expected the recipe of a run, found {batch} rows in each of "
            f"{stop_update - start.next_index} updates from position {start.position}, which no run reaches. Nothing "
            "was audited; restore the claim from a copy."
        )


def _placed(one: Finding, where: str, attempt: int) -> Finding:
    return msgspec.structs.replace(one, where=where, attempt=attempt)

"""Attempts: which launch of the job writes where."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resumable_data.errors import LedgerError, LedgerWriteError, TopologyError, UsageError
from resumable_data.ledger.frames import (
    CLAIM_BYTES_MAX,
    CLAIM_KIND,
    chain_checksum,
    make_frame,
    make_head,
    measure,
    shown,
)
from resumable_data.ledger.layout import (
    CLAIM_NAME,
    attempt_name,
    list_attempt,
    list_attempts,
    rank_and_peer,
    rank_name,
)
from resumable_data.ledger.reader import read_claim
from resumable_data.ledger.records import (
    ID_MODES,
    PIECES,
    Claim,
    Mesh,
    OlderFile,
    RankHeader,
    TakenOver,
    encode_record,
    id_bytes,
    key_check,
    secret_key,
)
from resumable_data.ledger.row_pieces import row_bytes_max
from resumable_data.ledger.writer import RankWriter, sync_directory, write_all

if TYPE_CHECKING:
    from resumable_data.cursor import Cursor

ON_ERROR_CHOICES = ("unproven", "raise")

FOLD_ROWS_MAX = 1 << 20
_DIGEST_PAYLOAD_BYTES_MAX = 256
_FULL_PAYLOAD_BYTES_MAX = 1 << 28
_logger = logging.getLogger(__name__)


class Ledger:
    """A directory that records what every launch of a run delivered.

    Nothing is written before `claim` or `join`.

    Args:
        path: The directory; it is made at the first claim.
        ids: ``"digest"`` records a digest of each microbatch's IDs, ``"full"`` the IDs themselves too
            (1, 2, 4 or 8 bytes per sample, the fewest that hold all of the order's); of packed rows, in place of their
            IDs, the pieces of documents that lay in them.
        on_error: What trouble with the ledger's files does: ``"unproven"`` logs it once, training goes on and
            the audit may say "unproven"; ``"raise"`` raises LedgerWriteError.
        key: A secret of the run that digests are keyed with: who has the ledger, but not the secret, cannot try out
            which items were read. Audits need it too. Only for ``ids="digest"``.
        fold_rows: Microbatches with fewer rows are folded, those of one update, into records of about so many: a
            smaller ledger, audited faster. What a killed process delivered of an update that it did not complete is
            then not recorded, so audits bound it in place of counting it. 0 writes each microbatch at once.
        peers: Whether tensor-, context- and pipeline-parallel peers of a data-parallel rank write files of their own,
            which audits compare with the rank's.

    Raises:
        UsageError: An argument has no meaning, or `path` is something else than a directory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        ids: str = "digest",
        on_error: str = "unproven",
        key: str = "",
        fold_rows: int = 0,
        peers: bool = False,
    ) -> None:
        for name, value, choices in (("ids", ids, ID_MODES), ("on_error", on_error, ON_ERROR_CHOICES)):
            if value not in choices:
                raise UsageError(f"{name} must be one of {choices}, got {value!r}")
        self.path = Path(path)
        self.ids = ids
        self.on_error = on_error
        self.peers = peers
        if key and ids == "full":
            raise UsageError('key= hides which IDs were read, and ids="full" writes them down; give one of the two')
        self._key = secret_key(key)
        self._fold_rows = require_fold_rows(fold_rows)
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"ledger: expected a directory or a new path, found a file at {shown(self.path)}")

    def claim(
        self,
        start: Cursor,
        *,
        num_replicas: int,
        microbatch: int,
        epochs: int | None,
        run_id: str,
        mesh: Mesh | None = None,
        taken_over: TakenOver | None = None,
    ) -> Claim:
        """Open the next attempt, for one launch and no other. Under a process group, rank 0 calls this.

        Args:
            start: The cursor the launch starts at.
            num_replicas: Data-parallel ranks.
            microbatch: The largest number of rows in one microbatch.
            epochs: Epochs of the whole run, None for a run without an end.
            run_id: The run's name.
            mesh: The job's processes; a single data-parallel axis when None.
            taken_over: What of the update at `start` is accumulated already, and not read again.

        Returns:
            The claim, for all ranks to open their files with. Its attempt is 0 where the ledger could not be
            written and `on_error` is ``"unproven"``.

        Raises:
            LedgerWriteError: It could not be written and `on_error` is ``"raise"``.
        """
        claim = Claim(
            run_id, 0, start, num_replicas, microbatch, epochs, _package_version(), mesh or _one_axis(num_replicas)
        ).starting_inside(taken_over)
        try:
            _make_directory(self.path)
            made = self._with_older(claim, self._newest()[0] + 1)
            while not self._try_claim(made):
                made = self._with_older(claim, made.attempt + 1)
        except (OSError, LedgerError) as error:
            self._fail(error)
            return claim
        return made

    def is_fenced(self, attempt: int) -> bool:
        """Whether a newer attempt than this one was claimed, so that another launch goes on with the run.

        Raises:
            LedgerError: The ledger cannot be read and `on_error` is ``"raise"``; otherwise that is logged, and it is
                not known to be.
        """
        try:
            return 0 < attempt < self._newest()[0]
        except LedgerError as error:
            if self.on_error == "raise":
                raise
            _logger.error("%s Whether another launch goes on with the run is not known. Training goes on.", error)
            return False

    def _with_older(self, claim: Claim, number: int) -> Claim:
        """The claim of attempt `number`, with what the attempts from its parent on had written by now."""
        attempts, _ = list_attempts(self.path)
        directories = {n: path for n, path in attempts.items() if max(claim.start.attempt, 1) <= n < number}
        older = [file for n, directory in directories.items() for file in _measure_files(n, directory)]
        return msgspec.structs.replace(claim, attempt=number, older=tuple(older))

    def join(
        self,
        start: Cursor,
        *,
        rank: int,
        num_replicas: int,
        microbatch: int,
        epochs: int | None,
        run_id: str,
        mesh: Mesh | None = None,
        taken_over: TakenOver | None = None,
        peer: int = 0,
    ) -> Claim:
        """Join the newest attempt if start and topology are its own and the rank is free; else claim one.

        For ranks that have no process group to agree by, say all ranks of a run simulated in one process.
        Arguments, result and errors are those of `claim`.
        """
        number, newest = self._newest_claim()
        shape = mesh or _one_axis(num_replicas)
        wanted = Claim(run_id, number, start, num_replicas, microbatch, epochs, _package_version(), shape)
        wanted = wanted.starting_inside(taken_over)
        if newest and msgspec.structs.replace(newest, older=()) == wanted and not self._has_file(number, rank, peer):
            return newest
        return self.claim(
            start,
            num_replicas=num_replicas,
            microbatch=microbatch,
            epochs=epochs,
            run_id=run_id,
            mesh=mesh,
            taken_over=taken_over,
        )

    def open_rank(self, claim: Claim, *, rank: int, peer: int = 0, process: int = 0) -> RankWriter:
        """Create the file of `rank` in a claimed attempt; `process` is what wrote it, for the header.

        Raises:
            TopologyError: The claim has no such rank.
            LedgerWriteError: It could not be created, or exists, and `on_error` is ``"raise"``.
        """
        if not 0 <= rank < claim.num_replicas or peer < 0:
            raise TopologyError(
                f"expected a rank in [0, {claim.num_replicas}) and a peer >= 0, got rank {rank}, peer {peer}"
            )
        if claim.attempt == 0:
            return RankWriter(None, None, on_error=self.on_error)
        recipe = claim.start.recipe
        limit, width, mode = _DIGEST_PAYLOAD_BYTES_MAX, id_bytes(recipe.length), self.ids
        if self.ids == "full":
            mode = PIECES if recipe.is_packed else self.ids
            row_bytes = row_bytes_max(int(recipe.order["row_length"])) if recipe.is_packed else width
            limit = min(limit + row_bytes * (claim.microbatch + self._fold_rows), _FULL_PAYLOAD_BYTES_MAX)
        header = RankHeader(
            run_id=claim.run_id,
            attempt=claim.attempt,
            rank=rank,
            num_replicas=claim.num_replicas,
            peer=peer,
            ids=mode,
            payload_bytes_max=limit,
            process=process,
            id_bytes=width,
            key_check=key_check(self._key),
            fold_rows=self._fold_rows,
        )
        path = self._directory(claim.attempt) / rank_name(rank, peer)
        return RankWriter(path, header, on_error=self.on_error, key=self._key, fold_rows=self._fold_rows)

    def newest(self) -> Claim | None:
        """The newest attempt's claim; None where there is no attempt yet.

        Raises:
            LedgerError: The newest claim cannot be read and `on_error` is ``"raise"``.
        """
        return self._newest_claim()[1]

    def _directory(self, attempt: int) -> Path:
        return self.path / attempt_name(attempt)

    def _newest(self) -> tuple[int, Path | None]:
        """The newest claimed attempt and its claim; (0, None) where there is none.

        Raises:
            LedgerError: That cannot be found out.
        """
        try:
            if not self.path.exists():
                return 0, None
            attempts, _ = list_attempts(self.path)
            for number, directory in reversed(attempts.items()):
                if (directory / CLAIM_NAME).exists():
                    return number, directory / CLAIM_NAME
        except OSError as error:
            raise LedgerError(f"the ledger {shown(self.path)} cannot be read: {error.strerror}.") from error
        return 0, None

    def _has_file(self, number: int, rank: int, peer: int) -> bool:
        """Whether a rank has its file in an attempt, or may have one."""
        try:
            return (self._directory(number) / rank_name(rank, peer)).exists()
        except OSError:
            return True

    def _newest_claim(self) -> tuple[int, Claim | None]:
        try:
            number, path = self._newest()
            return number, read_claim(path) if path else None
        except LedgerError as error:
            if self.on_error == "raise":
                raise
            _logger.error("%s Training goes on with a new attempt; the audit may say 'unproven'.", error)
            return 0, None

    def _try_claim(self, claim: Claim) -> bool:
        """Claim one number; False where another launch has it.

        The claim appears whole, under its own name, or not at all: a link to a finished file fails where the
        name exists.
        """
        directory = self._directory(claim.attempt)
        directory.mkdir(exist_ok=True)
        payload = encode_record(claim)
        if len(payload) > CLAIM_BYTES_MAX:
            raise OSError(f"a claim of {len(payload)} bytes, where {CLAIM_BYTES_MAX} are allowed")
        head = make_head(CLAIM_KIND)
        unfinished = directory / f".claim-{os.urandom(8).hex()}"
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(descriptor, head + make_frame(payload, chain_checksum(head))[0])
            os.fsync(descriptor)
            os.link(unfinished, directory / CLAIM_NAME)
        except FileExistsError:
            return False
        finally:
            os.close(descriptor)
            os.unlink(unfinished)
        for path in (directory, self.path):
            sync_directory(path)
        return True

    def _fail(self, error: Exception) -> None:
        message = (
            f"no attempt could be claimed in the ledger {shown(self.path)}: {error} What is delivered is "
            "not recorded, so the audit may say 'unproven'. Make the directory writable, and "
            "restart from a checkpoint."
        )
        if self.on_error == "raise":
            raise LedgerWriteError(message) from error
        _logger.error("%s Training goes on.", message)


def _make_directory(path: Path) -> None:
    """Make a directory and those above it, the name of each on the disk before there is anything inside.

    Raises:
        OSError: One cannot be made.
    """
    if path.exists():
        # Whoever made it may have been killed before its name was on the disk. Most often it is, and its parent is
        # somebody else's, perhaps not to be read: not worth a run without a ledger.
        with suppress(OSError):
            sync_directory(path.parent)
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def require_fold_rows(value: int) -> int:
    """`value` where it may be `fold_rows`.

    Raises:
        UsageError: It may not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= FOLD_ROWS_MAX:
        raise UsageError(f"fold_rows must be an integer in [0, {FOLD_ROWS_MAX}], got {value!r}")
    return value


def _one_axis(num_replicas: int) -> Mesh:
    return Mesh((("dp", num_replicas),), ("dp",))


def _measure_files(attempt: int, directory: Path) -> list[OlderFile]:
    """Sizes and last checksums of an attempt's rank files."""
    files = list_attempt(attempt, directory)
    paths = [*files.ranks.values(), *files.peers]
    places = [rank_and_peer(path.name) for path in paths]
    measured = [(*place, *measure(path)) for place, path in zip(places, paths, strict=True) if place]
    return [OlderFile(attempt, *one) for one in measured]


def _package_version() -> str:
    from resumable_data import __version__

    return __version__

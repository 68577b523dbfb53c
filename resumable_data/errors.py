"""Every error this package raises on purpose, and the exit code its commands give for it.

::

    ResumableDataError            4  something this package did not foresee
    ├── UsageError                2  an argument is wrong (also a ValueError)
    │   └── TopologyError         2  rank, size or mesh do not describe a rank set
    ├── StateError                3  a cursor cannot be used as it is
    │   ├── MissingStateError     3  there is no cursor in the state
    │   ├── CorruptStateError     3  the cursor's bytes are damaged or of another format
    │   ├── OtherRunError         1  the cursor belongs to another run
    │   ├── MigrationError        1  a run is moved in a way that nobody declared
    │   └── RecipeMismatchError   1  the cursor was counted under another recipe
    ├── DisagreementError         1  ranks of one job hold different cursors
    ├── DeviationError            1  a run that is watched does not do what its control did
    ├── FencedError               1  another launch goes on with this job's run
    ├── CommitError               4  commit() without a delivered update, or never called
    ├── StaleIteratorError        4  an iterator from before a load, a remap or a newer iter()
    ├── SampleReadError           3  the dataset could not give a sample
    ├── LogError                  3  a log of sample IDs cannot be read
    ├── SourceError               3  a source of tokens cannot be read, or does not hold what it says
    ├── CheckpointError           3  a checkpoint, or a file of one, cannot be read
    ├── TraceError                3  a trace of updates cannot be read or written
    └── LedgerError               3  the ledger cannot be used
        ├── LedgerCorruptError    3  a ledger file is damaged
        └── LedgerWriteError      3  a ledger file could not be written

Every message says what was expected, what was found, what it would do to the data, and how to go on.
"""

from __future__ import annotations

from typing import ClassVar


class ResumableDataError(Exception):
    """Base of all errors of this package."""

    exit_code: ClassVar[int] = 4


class UsageError(ResumableDataError, ValueError):
    """An argument is outside what the called thing accepts."""

    exit_code = 2


class TopologyError(UsageError):
    """Rank, size or mesh do not describe a rank set."""


class StateError(ResumableDataError):
    """A cursor cannot be used as it is."""

    exit_code = 3


class MissingStateError(StateError):
    """The state is empty or has no cursor in it."""


class CorruptStateError(StateError):
    """The cursor's bytes are damaged, or of a format this version cannot read."""


class SealError(CorruptStateError):
    """A checkpoint holds parts of several saves, or of ranks that did not agree."""


class OtherRunError(StateError):
    """The cursor belongs to another run."""

    exit_code = 1


class MigrationError(StateError):
    """A run is moved in a way that nobody declared, or otherwise than it was declared."""

    exit_code = 1


class RecipeMismatchError(StateError):
    """The cursor was counted under another recipe."""

    exit_code = 1


class DisagreementError(ResumableDataError):
    """Ranks of one job hold different cursors."""

    exit_code = 1


class DeviationError(ResumableDataError):
    """A run that is watched does not do what its control did, and was asked to end then."""

    exit_code = 1


class FencedError(ResumableDataError):
    """Another launch goes on with this job's run."""

    exit_code = 1


class CommitError(ResumableDataError, RuntimeError):
    """A commit does not fit what was delivered."""


class StaleIteratorError(ResumableDataError, RuntimeError):
    """An iterator is used after a load, a remap or a newer ``iter()`` made it invalid."""


class SampleReadError(ResumableDataError, RuntimeError):
    """The dataset could not give a sample."""

    exit_code = 3


class LogError(ResumableDataError):
    """A log of sample IDs, from whatever script, cannot be read."""

    exit_code = 3


class SourceError(ResumableDataError):
    """A source of tokens cannot be read or written, or does not hold what its header or offsets say."""

    exit_code = 3


class CheckpointError(ResumableDataError):
    """A checkpoint, or a file of one, cannot be read, or is not what it should be."""

    exit_code = 3


class TraceError(ResumableDataError):
    """A trace of updates cannot be read or written, or is damaged."""

    exit_code = 3


class LedgerError(ResumableDataError):
    """The ledger cannot be used."""

    exit_code = 3


class LedgerCorruptError(LedgerError):
    """A ledger file is damaged."""


class LedgerWriteError(LedgerError, OSError):
    """A ledger file could not be written."""

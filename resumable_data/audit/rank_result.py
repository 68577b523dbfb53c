"""What one rank's file adds to the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.audit.findings import Issue
from resumable_data.audit.unreadable import UnreadableSample
from resumable_data.cursor import CoverageSpan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[np.int64]
    Mask = NDArray[np.bool_]


class Change(msgspec.Struct, frozen=True):
    """Rows by which a rank's deliveries differ from its share, as runs of positions.

    Attributes:
        start: (k,) int64, first position of each run.
        stride: (k,) int64, positions from one row to the next.
        count: (k,) int64, rows.
        sign: 1 for rows delivered and not expected, -1 for rows expected and not delivered.
    """

    start: Vector
    stride: Vector
    count: Vector
    sign: int


class RankResult(msgspec.Struct):
    """What one rank's file adds to the audit.

    Attributes:
        known_stop: The file tells all of its updates before this one.
        delivered: Samples handed to the training loop, repeats included.
        reached: The position after the last row delivered; 0 where none was.
        rewound: Samples discarded by rewinds.
        beyond: Samples of updates that are not in the surviving history, rewinds apart.
        handed_on: Samples of an update that the next attempt went on with.
        lost: Samples of the surviving history that the file should tell about and does not.
        lost_inside: The same of the part of an update that the next attempt went on with.
        unverified: Samples whose IDs are not those of their positions, so that it is open what was delivered.
        unreadable: Samples of the surviving history that could not be read and were replaced, as recorded.
        changes: Rows that were delivered and not expected, or the reverse.
        stops: (n,) int64, the update after the last one of each step that was committed, in sequence.
        applied: (n,) bool, whether the step was applied.
        agreements: The digests that the ranks agreed on before saves in the surviving history, as recorded.
        saved: The update at the newest checkpoint that the file says is complete; -1 where it says of none.
        is_missing: Whether there is no file that can be used.
        issues: What is wrong.
    """

    known_stop: int
    saved: int = -1
    is_missing: bool = False
    agreements: frozenset[CoverageSpan] = frozenset()
    delivered: int = 0
    reached: int = 0
    rewound: int = 0
    beyond: int = 0
    handed_on: int = 0
    lost: int = 0
    lost_inside: int = 0
    unverified: int = 0
    unreadable: list[UnreadableSample] = msgspec.field(default_factory=list)
    changes: list[Change] = msgspec.field(default_factory=list)
    stops: Vector = msgspec.field(default_factory=lambda: np.empty(0, np.int64))
    applied: Mask = msgspec.field(default_factory=lambda: np.empty(0, np.bool_))
    issues: list[Issue] = msgspec.field(default_factory=list)

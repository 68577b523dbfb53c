"""What checks find: kinds of findings by code, and findings made of them, which programs and people read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VIOLATION = "violation"
MISSING_EVIDENCE = "missing-evidence"
WARNING = "warning"
NOTE = "note"
SEVERITIES = (VIOLATION, MISSING_EVIDENCE, WARNING, NOTE)


class Kind(NamedTuple):
    """What all findings of one code have in common."""

    severity: str
    title: str
    remedy: str


class PlainFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a check found: `code` and `severity` for programs, the rest for people.

    Attributes:
        code: A key of a table of kinds; codes keep their meaning for ever.
        severity: One of `SEVERITIES`.
        title: What was found, in words.
        where: What it is about.
        expected: What should be there, of the first one.
        found: What is there.
        remedy: What to do.
    """

    code: str
    severity: str
    title: str
    where: str
    expected: str
    found: str
    remedy: str

    @classmethod
    def of(cls, kinds: Mapping[str, Kind], code: str, where: str, *, expected: str, found: str) -> Self:
        """A finding of a kind in a table."""
        return cls(code=code, where=where, expected=expected, found=found, **kinds[code]._asdict())

    @property
    def precedence(self) -> tuple[int, str]:
        """Sorts the worst first."""
        return SEVERITIES.index(self.severity), self.code


class Finding(PlainFinding, frozen=True, kw_only=True):
    """One thing that an audit found, in files, attempts, ranks and updates.

    Attributes:
        attempt: The attempt concerned, None where it is not one.
        ranks: dp ranks concerned, say ``"0-3,7"``; empty where it is not about ranks.
        count: Records, files or fields concerned.
        first_update: The first update concerned, None where it is not about updates; where a DataLoader's batches are
            counted, `where` says so, the first batch.
        last_update: The last one.
        first_position: The first position of these updates.
        last_position: The last one.
    """

    attempt: int | None = None
    ranks: str = ""
    count: int = 1
    first_update: int | None = None
    last_update: int | None = None
    first_position: int | None = None
    last_position: int | None = None

    @classmethod
    def of(
        cls,
        kinds: Mapping[str, Kind],
        code: str,
        where: str,
        *,
        expected: str,
        found: str,
        attempt: int | None = None,
        ranks: Iterable[int] = (),
        count: int = 1,
        first_update: int | None = None,
        last_update: int | None = None,
    ) -> Self:
        """A finding of a kind in a table, of which the positions are not known yet."""
        plain = super().of(kinds, code, where, expected=expected, found=found)
        return msgspec.structs.replace(
            plain,
            attempt=attempt,
            ranks=format_ranks(ranks),
            count=count,
            first_update=first_update,
            last_update=last_update,
        )


def format_ranks(ranks: Iterable[int]) -> str:
    """Ranks as text: ``"0-3,7"``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ",".join(shown[:20]) + (f" and {len(shown) - 20} more groups" if len(shown) > 20 else "")

"""What a pickle that is read as data consists of: plain values, and names and calls that stay what they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from resumable_data.ledger.frames import shown


class PickleFormatError(Exception):
    """The bytes are not a pickle that this machine reads; callers say of which file."""


class ForbiddenGlobalError(PickleFormatError):
    """The pickle names a global that it has no business with."""


class Global(NamedTuple):
    """A name that a pickle asks for, say ``torch.Size``."""

    module: str
    name: str

    def __str__(self) -> str:
        return shown(f"{self.module}.{self.name}")


class PersistentId(NamedTuple):
    """A reference to what lies outside the pickle: for torch, a storage."""

    value: Any


class Object:
    """What a pickle would make by calling `callee`; compared and hashed by identity.

    Attributes:
        callee: Usually a `Global`.
        args: Usually a tuple.
        items: Of what stands for a container, say an OrderedDict, its content as a dict or list; else None.
        state: The attributes that were set afterwards; None where none were.
    """

    __slots__ = ("args", "callee", "items", "state")

    def __init__(self, callee: Any, args: Any) -> None:
        self.callee, self.args = callee, args
        self.items: Any = None
        self.state: Any = None

    @property
    def name(self) -> Global | None:
        """The global that is called; None where it is something else."""
        return self.callee if type(self.callee) is Global else None


class Key:
    """A key of a dict that is neither text nor number, hashed by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

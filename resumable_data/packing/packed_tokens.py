"""Documents of tokens as rows of one length: what a loader, and an audit, are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from resumable_data.errors import UsageError
from resumable_data.order import Order, Shuffle, check_order, order_from_description
from resumable_data.packing.arguments import checked_int
from resumable_data.packing.history import PackedHistory
from resumable_data.packing.policies import BestFit, Carry, Concat, NoPacking, Policy
from resumable_data.packing.registry import policy_from_description
from resumable_data.packing.windows import DEFAULT_WINDOW, PlannedWindow, WindowPlan
from resumable_data.plan.packed_place import PACKED_KIND, PACKED_LENGTH
from resumable_data.sources import TokenSource, compare_fingerprints


class PackedRow(NamedTuple):
    """One row.

    Attributes:
        window: Its window in the epoch.
        row: Its place among that window's rows.
        pieces: ``(document, start, stop)`` of each piece, in the order in which they lie in it.
    """

    window: int
    row: int
    pieces: list[tuple[int, int, int]]


class PackedTokens:
    """Documents packed into rows of one length, in one global sequence that does not depend on the number of ranks.

    An epoch's documents, in the order given, are packed a window at a time; each window is planned by itself, alike in
    every process, when its first row is needed. Give it to `ResumableLoader` in place of a dataset.

    Args:
        tokens: The documents, see `open_tokens`.
        sequence_length: Tokens of a row.
        order: Of the documents; a `Shuffle` by `seed` when None.
        policy: How a window's documents become rows; `BestFit` when None.
        window: Documents of a window.
        seed: Of the shuffle of a window's rows, and of the default order.
        pad_token: What is in the places of a row that hold no token of a document. They have no label.

    Raises:
        UsageError: An argument is outside what is accepted, or order and tokens differ in length.

    Example:
        >>> import numpy as np
        >>> from resumable_data.order import Sequential
        >>> from resumable_data.sources import open_tokens
        >>> tokens = open_tokens(np.arange(24), lengths=[5, 3, 8, 2, 6])
        >>> packed = PackedTokens(tokens, sequence_length=8, order=Sequential(5), window=3)
        >>> for row in packed.rows():
        ...     print(row.window, row.pieces)
        0 [(2, 0, 8)]
        0 [(0, 0, 5), (1, 0, 3)]
        1 [(4, 0, 6), (3, 0, 2)]
    """

    def __init__(
        self,
        tokens: TokenSource,
        /,
        *,
        sequence_length: int,
        order: Order | None = None,
        policy: Policy | None = None,
        window: int = DEFAULT_WINDOW,
        seed: int = 0,
        pad_token: int = 0,
    ) -> None:
        if not isinstance(tokens, TokenSource):
            raise UsageError(
                f"expected a source of tokens, found {type(tokens).__name__}. There are no documents to pack; give "
                "what open_tokens() returns, or a source of your own (resumable_data.sources.TokenSource)."
            )
        self.order: Order = Shuffle(len(tokens), seed=seed) if order is None else order
        check_order(self.order)
        if len(self.order) != len(tokens):
            raise UsageError(
                f"the order has {len(self.order)} documents and the source {len(tokens)}: documents would never be "
                "seen, or asked for and not there. Make the order with the number of documents."
            )
        self.source = tokens
        self.pad_token = checked_int("pad_token", pad_token, 0, 2**63 - 1, "Pass a token that the model knows.")
        self._policy: Policy = BestFit() if policy is None else policy
        self._plan = WindowPlan(
            self.order, tokens.lengths, self._policy, row_length=sequence_length, window=window, seed=seed
        )

    @property
    def sequence_length(self) -> int:
        """Tokens of a row."""
        return self._plan.row_length

    @property
    def num_windows(self) -> int:
        """Windows of an epoch."""
        return self._plan.num_windows

    @property
    def truncates(self) -> bool:
        """Whether a document that is longer than a row is cut to the length of one."""
        return isinstance(self._policy, BestFit | NoPacking) and self._policy.truncate

    def window_places(self, window: int) -> tuple[int, int]:
        """The half-open range of places in an epoch's order of a window's own documents."""
        return self._plan.places(window)

    @property
    def carries(self) -> bool:
        """Whether a window's rest goes on into the next one."""
        return isinstance(self._policy, Concat)

    def plan(self, epoch: int, window: int, carry: Carry | None = None) -> PlannedWindow:
        """The rows of one window, see `WindowPlan.plan`.

        Args:
            epoch: At least 0.
            window: From 0 to ``num_windows - 1``.
            carry: Where the window begins, of use with `Concat` only, and found from the windows before it when None.
        """
        if carry is None and self.carries:
            carry = self._plan.carry_into(epoch, window)
        return self._plan.plan(epoch, window, carry)

    def rows(self, epoch: int = 0) -> Iterator[PackedRow]:
        """The rows of an epoch in the global sequence, one after another."""
        carry = None
        for window in range(self.num_windows):
            planned = self._plan.plan(epoch, window, carry)
            carry = planned.carry
            for row in range(len(planned.rows)):
                yield PackedRow(window, row, planned.rows.pieces(row))

    def count_rows(self, epoch: int = 0) -> int:
        """Rows of an epoch. All of it is planned for that, some million documents a second."""
        count, carry = 0, None
        for window in range(self.num_windows):
            planned = self._plan.plan(epoch, window, carry)
            count, carry = count + len(planned.rows), planned.carry
        return count

    def history(self) -> PackedHistory:
        """All rows of a run, for audits."""
        return PackedHistory(self)

    def describe_change(self, fingerprint: str) -> str:
        """What became of the source since its fingerprint was taken; empty where that is not known, or nothing.

        Args:
            fingerprint: As `fingerprint` gave it; any other text is a user's own, and says nothing here.
        """
        if not fingerprint.startswith("tokens-v1 "):
            return ""
        change = compare_fingerprints(fingerprint, self.source)
        return "" if change.kind == "same" else f"{change.kind}: {change.text}"

    def fingerprint(self) -> str:
        """What identifies the contents of the source."""
        return self.source.fingerprint()

    def describe(self) -> dict[str, int | str]:
        """Everything that the rows depend on besides the documents themselves, flat, as a recipe holds it."""
        return {
            "kind": PACKED_KIND,
            "length": PACKED_LENGTH,
            **{f"order_{key}": value for key, value in self.order.describe().items()},
            **self._plan.describe(),
        }

    @classmethod
    def from_description(cls, tokens: TokenSource, description: Mapping[str, int | str], /) -> PackedTokens:
        """The same rows again, from what `describe` returned and the same documents.

        Args:
            tokens: The documents.
            description: As in a cursor's recipe; it may come from a file and is not trusted.

        Raises:
            UsageError: It is none of packed rows, or of an order or policy that cannot be rebuilt.
        """
        if description.get("kind") != PACKED_KIND:
            raise UsageError(
                f"expected the recipe of a run over packed rows, found one of {description.get('kind')!r}: that run "
                "read samples, not rows of tokens. Leave the tokens out."
            )
        of_order = {key[6:]: value for key, value in description.items() if key.startswith("order_")}
        of_policy = {key[7:]: value for key, value in description.items() if key.startswith("policy_")}
        if of_order.get("length") != len(tokens):
            raise UsageError(
                f"the run read {of_order.get('length')} documents, and the source has {len(tokens)}: documents were "
                "appended or left out since. Its rows cannot be planned again; give the tokens as they were."
            )
        # whatever is in a file: it is checked by what takes it
        arguments: dict[str, Any] = {key: description.get(key, 0) for key in ("row_length", "window", "seed")}
        packed = cls(
            tokens,
            sequence_length=arguments["row_length"],
            order=order_from_description(of_order),
            policy=policy_from_description(of_policy),
            window=arguments["window"],
            seed=arguments["seed"],
        )
        if packed.describe() != dict(description):
            raise UsageError(
                f"a description of packed rows must look like {packed.describe()}; found {dict(description)}. It may "
                "mean other rows. Use the release of resumable_data that wrote it."
            )
        return packed

"""A place in a run over packed rows, which has no fixed number of rows an epoch."""

from __future__ import annotations

import msgspec

PACKED_KIND = "packed-rows"
"""The ``kind`` that packed rows describe themselves with, where an order has its own."""

PACKED_LENGTH = 1 << 61
"""Rows of the one endless "epoch" by which positions of a run over packed rows are counted: its rows are numbered
through all epochs of its documents, as how many an epoch has is not known before it is planned."""


class PackedPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the next row of a run is, and what is behind it. Enough to plan on from, whatever came before.

    Attributes:
        epoch: Epoch of the documents that the next row is of.
        window: Window of that epoch.
        row: Row of that window.
        carry_document: Where that window begins, as a place in the epoch's order of documents; see
            `resumable_data.packing.Carry`.
        carry_offset: And as a token of that document.
        documents: Documents whose last token is behind, over the whole run.
        tokens: Tokens of documents that are behind, without padding.
        target_tokens: Those of them that are followed by a token of the same document in the same row.
        truncated_tokens: Tokens that were left out, where truncation was asked for, of documents behind.
    """

    epoch: int = 0
    window: int = 0
    row: int = 0
    carry_document: int = 0
    carry_offset: int = 0
    documents: int = 0
    tokens: int = 0
    target_tokens: int = 0
    truncated_tokens: int = 0

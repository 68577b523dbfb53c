"""Whether the rows of a window hold every token of its documents once, by the rows and the lengths alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from resumable_data.order import Int64Array
    from resumable_data.packing.packed_tokens import PackedTokens
    from resumable_data.packing.run_window import RunWindow


def find_gap(packed: PackedTokens, window: RunWindow) -> str:
    """What is wrong with a window's rows, as one line; empty where they hold every token once, truncation apart.

    Args:
        packed: The documents and their order.
        window: Planned rows, the place they begin at and the one after them.
    """
    documents, first, last = _expected(packed, window)
    rows = window.rows
    arrangement = np.lexsort((rows.start, rows.document))  # documents ascending, then their tokens
    document, start, stop = (column[arrangement] for column in (rows.document, rows.start, rows.stop))
    begins = np.diff(document, prepend=-1) != 0
    ends = np.append(begins[1:], begins[:1])  # none where the window has no rows
    joins = ~begins[1:]
    if not np.array_equal(start[1:][joins], stop[:-1][joins]):
        return _at(document[1:][joins], start[1:][joins] != stop[:-1][joins], "has tokens twice or not at all in rows")
    held = first < last
    if not np.array_equal(document[begins], documents[held]):
        return "other documents are in rows than the window has"
    if not np.array_equal(start[begins], first[held]):
        return _at(document[begins], start[begins] != first[held], "does not begin in rows where it should")
    missing = last[held] - stop[ends]
    told = (rows.num_truncated_documents, rows.num_truncated_tokens)
    if (missing < 0).any() or (int(np.count_nonzero(missing)), int(missing.sum())) != told:
        return _at(document[begins], missing != 0, "does not end in rows where it should")
    return ""


def _expected(packed: PackedTokens, window: RunWindow) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The window's documents, ascending, and the tokens ``[first, last)`` of each that its rows are to hold."""
    here, following = window.place, window.next
    stop, rest = following.carry_document, following.carry_offset
    if following.epoch != here.epoch:
        stop, rest = len(packed.source), 0
    places = np.arange(here.carry_document, stop + bool(rest), dtype=np.int64)
    documents = packed.order.ids(here.epoch, places)
    first, last = np.zeros_like(documents), packed.source.lengths(documents)
    first[:1] = here.carry_offset
    if rest:
        last[-1] = rest
    arrangement = np.argsort(documents, kind="stable")
    return documents[arrangement], first[arrangement], last[arrangement]


def _at(documents: Int64Array, is_wrong: np.ndarray[tuple[int], np.dtype[np.bool_]], text: str) -> str:
    return f"document {int(documents[int(np.argmax(is_wrong))])} {text}"

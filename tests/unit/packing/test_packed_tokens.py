"""`PackedTokens`: its arguments, what it says of itself, and rows that come back from that."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from resumable_data import BestFit, Concat, Fill, NoPacking, PackedTokens, Sequential, Shuffle, open_tokens
from resumable_data.errors import UsageError
from resumable_data.plan.packed_place import PACKED_KIND
from tests.packed_jobs import LENGTHS, POLICIES, make_packed, make_source


def described(**changes: Any) -> dict[str, Any]:
    return make_packed().describe() | changes


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PackedTokens([1, 2, 3], sequence_length=8), "expected a source of tokens, found list"),  # type: ignore[arg-type]
        (lambda: PackedTokens(None, sequence_length=8), "expected a source of tokens, found NoneType"),  # type: ignore[arg-type]
        (lambda: make_packed(order=Shuffle(19)), "the order has 19 documents and the source 20"),
        (lambda: make_packed(order="shuffle"), "order"),
        (lambda: make_packed(sequence_length=0), "must be an int from 1"),
        (lambda: make_packed(sequence_length=8.0), "must be an int from 1"),
        (lambda: make_packed(sequence_length=True), "must be an int from 1"),
        (lambda: make_packed(window=0), "window must be an int from 1"),
        (lambda: make_packed(window=2**22 + 1), "window must be an int from 1"),
        (lambda: make_packed(seed=-1), "seed"),
        (lambda: make_packed(seed=2**63), "seed"),
        (lambda: make_packed(pad_token=-1), "pad_token must be an int from 0"),
        (lambda: make_packed().plan(0, 4), "window must be an int from 0 to 3"),
        (lambda: make_packed().plan(-1, 0), "epoch"),
    ],
)
def test_arguments_that_are_refused(make: Any, text: str) -> None:
    """Each by its name, before anything is read."""
    with pytest.raises(UsageError, match=text):
        make()


def test_what_is_said_of_it() -> None:
    """Everything that the rows depend on, flat, with the order's and the policy's under names of their own."""
    packed = make_packed(policy=Fill(0.5), order=Shuffle(20, seed=4, name="text"), seed=9)
    description = packed.describe()
    assert description["kind"] == PACKED_KIND
    expected = {
        "order_kind": "shuffle",
        "order_seed": 4,
        "order_name": "text",
        "order_length": 20,
        "policy_kind": "fill",
        "policy_threshold": "0.5",
        "row_length": 8,
        "window": 6,
        "seed": 9,
    }
    assert expected.items() <= description.items()
    assert all(isinstance(value, int | str) for value in description.values())
    assert (packed.sequence_length, packed.num_windows, packed.carries) == (8, 4, False)
    assert make_packed(policy=Concat()).carries
    assert packed.fingerprint() == packed.source.fingerprint()


def test_the_default_order_is_a_shuffle_by_the_seed() -> None:
    """And the default policy best fit, in windows of 2^16 documents."""
    packed = PackedTokens(make_source(LENGTHS), sequence_length=8, seed=5)
    again = PackedTokens(
        make_source(LENGTHS), sequence_length=8, seed=5, order=Shuffle(20, seed=5), policy=BestFit(), window=2**16
    )
    assert packed.describe() == again.describe()
    assert list(packed.rows(3)) == list(again.rows(3))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_rows_from_a_description(policy: Any) -> None:
    """The recipe's dictionary and the documents give the same rows."""
    packed = make_packed(policy=policy, order=Shuffle(20, seed=3), seed=2, pad_token=5)
    again = PackedTokens.from_description(packed.source, packed.describe())
    assert again.describe() == packed.describe()
    assert list(again.rows(1)) == list(packed.rows(1))


@pytest.mark.parametrize(
    "description",
    [
        {},
        Shuffle(20).describe(),
        described(version=2),
        described(length=5),
        described(more=1),
        described(policy_kind="mine"),
        described(policy_truncate=2),
        described(order_kind="mine"),
        described(order_length=19),
        described(row_length="8"),
        described(row_length=-1),
        described(window=2**70),
        described(seed=None),
        {key: value for key, value in described().items() if key != "seed"},
        {key: value for key, value in described().items() if key != "policy_truncate"},
    ],
    ids=lambda description: ",".join(sorted(map(str, description.items() - described().items()))) or "fewer",
)
def test_descriptions_that_are_refused(description: dict[str, Any]) -> None:
    """What comes from a file and is none of ours gives an error of ours."""
    with pytest.raises(UsageError):
        PackedTokens.from_description(make_source(LENGTHS), description)


@pytest.mark.parametrize(
    ("lengths", "kind"),
    [
        (LENGTHS, ""),
        ([*LENGTHS, 4], "appended"),
        (LENGTHS[:-1], "shortened"),
        ([3, 5, *LENGTHS[2:]], "edited"),
        ([6, *LENGTHS[1:]], "edited"),
    ],
    ids=["same", "appended", "shortened", "swapped", "longer"],
)
def test_what_became_of_the_documents(lengths: list[int], kind: str) -> None:
    """Told from the fingerprint of a run; of a user's own fingerprint nothing is known."""
    change = make_packed(lengths).describe_change(make_packed().fingerprint())
    assert change.partition(":")[0] == kind
    assert make_packed(lengths).describe_change("the second version") == ""


def test_rows_do_not_depend_on_how_documents_are_stored() -> None:
    """The order of documents, their lengths and the recipe are all: another token type gives the same rows."""
    packed = make_packed(policy=Fill())
    lengths = np.array(LENGTHS)
    tokens = np.array(packed.source.tokens, np.uint16)  # type: ignore[attr-defined]
    other = PackedTokens(open_tokens(tokens, lengths=lengths), sequence_length=8, window=6, policy=Fill())
    assert list(other.rows()) == list(packed.rows())
    assert other.fingerprint() == packed.fingerprint()


def test_it_pickles() -> None:
    """To a spawned worker or process."""
    packed = make_packed(policy=NoPacking(truncate=True), order=Sequential(20))
    assert list(pickle.loads(pickle.dumps(packed)).rows()) == list(packed.rows())

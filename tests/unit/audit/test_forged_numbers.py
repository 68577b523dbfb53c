"""Any number in any record may be anything, under right checksums: a report or an error of ours, and no more.

Accidents cannot do that, checksums find those; but a tool that reads what others wrote does not break on it.
"""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.audit import audit_ledger
from resumable_data.errors import ResumableDataError
from tests.examples import examples
from tests.files import overwrite
from tests.unit.audit import test_lies_of_batches
from tests.unit.audit.forging import EXTREMES, forge, numbers_in
from tests.unit.audit.test_inside import parted_run
from tests.unit.audit.test_power import honest_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.audit.forging import Place

PEAK_BYTES_MAX = 800 << 20


def tracked_run(path: Path) -> Any:
    return SimpleNamespace(path=test_lies_of_batches.honest_run(path))


MAKERS: dict[str, Callable[[Path], Any]] = {
    "digest": honest_run,
    "full": lambda path: honest_run(path, ids="full"),
    "folded": lambda path: honest_run(path, fold_rows=4, num_peers=1),
    "tracked": tracked_run,
    "parted": lambda path: parted_run(path / "ledger", num_launches=3),
}


class Forgery:
    """A ledger that is forged again and again, from the same good files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.good = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
        self.places = [place for file in self.good for place in numbers_in(file)]

    def audit(self, changes: dict[Place, int]) -> None:
        """Audit with some numbers changed; what comes is looked at in all its forms."""
        try:
            forge(changes)
            report = audit_ledger(self.path)
            assert report.to_text()
            assert report.to_json()
        except ResumableDataError:
            pass
        finally:
            for file in {place.file for place in changes}:
                overwrite(file, self.good[file])


@pytest.fixture(scope="module", params=list(MAKERS))
def forgery(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forgery:
    return Forgery(MAKERS[request.param](tmp_path_factory.mktemp("forged")).path)


@examples(25, quick=8)
@given(data=st.data())
def test_forged_numbers_give_a_report_or_an_error_of_ours(forgery: Forgery, data: st.DataObject) -> None:
    """One number or a few of them: no other exception, no warning, and no memory without a bound."""
    places = st.sampled_from(forgery.places)
    changes = data.draw(st.dictionaries(places, st.sampled_from(EXTREMES), min_size=1, max_size=3))
    tracemalloc.start()
    try:
        forgery.audit(changes)
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_every_number_of_a_ledger_is_forged(forgery: Forgery) -> None:
    """Each number of each record; the extreme values take turns, each number gets every fifth."""
    for number, place in enumerate(forgery.places):
        for value in EXTREMES[number % 5 :: 5]:
            forgery.audit({place: value})


def test_the_good_ledger_is_proven(forgery: Forgery) -> None:
    """Without a forgery the ledger is proven, and put back after each one."""
    assert audit_ledger(forgery.path).verdict == "proven"
    assert len(forgery.places) > 200

"""What is written of results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks._comparisons import Comparison, comparisons, losses
from benchmarks._losses import explained, reason
from benchmarks._moves_table import cell, readme_table
from benchmarks._page import PAGE, README, ROOT, SECTIONS, TABLE_IN_README, page, read_documents, with_table
from benchmarks._tables import count, large, seconds, table, times
from benchmarks.guard import CASES, COMMITTED

DOCUMENTS = read_documents()
RESULTS = {question: document["results"] for question, document in DOCUMENTS.items()}


def test_the_page_is_what_the_stored_results_say() -> None:
    """Nobody changed a figure by hand, or stored results without writing the page."""
    assert PAGE.read_text() == page(DOCUMENTS)


def test_the_readme_shows_the_stored_moves() -> None:
    """The first screen's table is that of the results."""
    readme = README.read_text()
    assert TABLE_IN_README.search(readme)
    assert readme == with_table(readme, RESULTS["data_after_a_move"])


def test_every_section_has_results_and_every_figure_is_there() -> None:
    """The page leaves out what was not measured, so that must not happen to what is committed."""
    assert {section.question for section in SECTIONS} <= RESULTS.keys()
    assert all((ROOT / "docs" / "img" / section.figure).is_file() for section in SECTIONS if section.figure)


def test_every_loss_is_explained() -> None:
    """Where ours costs over a tenth more than another, the page says why."""
    assert explained(losses(RESULTS)).get("", []) == []


def test_every_guarded_case_has_a_committed_figure() -> None:
    """`make bench-check` measures what was committed, all of it."""
    assert json.loads(COMMITTED.read_text())["results"]["ratios"].keys() == CASES.keys()


def test_ours_is_exact_in_all_stored_moves() -> None:
    """The promise, in the figures that the README shows; another seed is refused."""
    stored = RESULTS["data_after_a_move"]["resumable_data"]
    cells = {name: cell(entry) for name, entry in stored.items() if isinstance(entry, dict)}
    assert cells.pop("another seed") == "refuses"
    assert set(cells.values()) == {"exact"}


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"outcome": "read", "replayed": 0, "omitted": 0, "empty_passes": 0}, "exact"),
        ({"outcome": "read", "replayed": 3, "omitted": 4, "empty_passes": 0}, "+3 -4"),
        ({"outcome": "read", "replayed": 0, "omitted": 0, "empty_passes": 1}, "empty pass"),
        ({"outcome": "refused", "why": "no"}, "refuses"),
        ({"outcome": "failed", "why": "Traceback"}, "fails"),
        (None, "not measured"),
    ],
)
def test_cells_say_what_happened(entry: dict[str, Any] | None, text: str) -> None:
    """Counts where there are some, a word where not."""
    assert cell(entry) == text


def test_a_loader_that_is_nowhere_installed_is_left_out_of_the_readme() -> None:
    """The page names it; a row without a figure says nothing on a first screen."""
    results = {"A": {"how": "so", "package": "a", "version": "1", "4 to 2 ranks": {"outcome": "refused", "why": "no"}}}
    rows = readme_table({**results, "B": {"how": "so", "outcome": "not installed"}}).splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["", "---", "A 1"]


def test_a_comparison_counts_the_cost_of_the_other_over_ours() -> None:
    """The loader's ratios are to a plain DataLoader, and turned round."""
    case = {"plain": {"ratio": 1.0}, "ours, no ledger": {"ratio": 1.25}, "StatefulDataLoader": {"ratio": 2.5}}
    found = list(comparisons({"loader_overhead": {"item 0 us, 0 workers": case}}))
    assert [(one.peer, one.times_ours, one.is_loss) for one in found] == [
        ("plain DataLoader", 0.8, True),
        ("torchdata StatefulDataLoader", 2.0, False),
    ]


def test_a_loss_without_a_reason_stands_alone() -> None:
    """What nothing explains is seen."""
    unknown = Comparison("packed_loader", "0 workers", "TRL", 0.5)
    assert reason(unknown) is None
    assert explained([unknown]) == {"": [unknown]}


def test_numbers_are_written_for_people() -> None:
    """Units that suit, powers of ten where they are exact."""
    assert [seconds(2.5), seconds(0.0025), seconds(2.5e-6)] == ["2.5 s", "2.5 ms", "2.5 µs"]
    assert [count(2.5e9), count(1.25e6), count(3000), count(2)] == ["2.5 G", "1.25 M", "3 k", "2"]
    assert [times(0.5), times(12345.6)] == ["0.50 x", "12,346 x"]
    assert [large(10**12), large(1000), large(65_537)] == ["10^12", "1 000", "65 537"]
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"

"""Results of several environments in one file."""

from __future__ import annotations

from typing import Any

from benchmarks._store import NOT_INSTALLED, merge, rounded, walk

MISSING = {"outcome": NOT_INSTALLED, "why": "ImportError"}


def document(torch: str, results: dict[str, Any]) -> dict[str, Any]:
    return {
        "question": "speed",
        "command": "python -m benchmarks.speed",
        "time": "now",
        "machine": {"versions": {"torch": torch}},
        "results": results,
    }


def test_a_loader_that_is_missing_here_keeps_what_another_environment_measured() -> None:
    """The streaming environment's figures outlive a run in the other one, and the other way round."""
    stored = document("2.14", {"moves": {"4 to 2": {"A": MISSING, "B": {"s": 2.0, "times_ours": 20.0}}}})
    new = document("2.13", {"moves": {"4 to 2": {"A": {"s": 1.0, "times_ours": 5.0}, "B": MISSING}}})
    merged = merge(stored, new)
    both = {"A": {"s": 1.0, "times_ours": 5.0}, "B": {"s": 2.0, "times_ours": 20.0}}
    assert merged["results"] == {"moves": {"4 to 2": both}}
    assert [run["machine"]["versions"]["torch"] for run in merged["runs"]] == ["2.14", "2.13"]


def test_no_entry_mixes_figures_of_two_runs() -> None:
    """A case that is measured again is replaced whole, also where it now has fewer figures."""
    stored = document("2.13", {"A": {"s": 1.0, "times_ours": 5.0}})
    assert merge(stored, document("2.13", {"A": {"s": 3.0}}))["results"] == {"A": {"s": 3.0}}
    refused = {"outcome": "refused", "why": "no"}
    assert merge(stored, document("2.13", {"A": refused}))["results"] == {"A": refused}


def test_cases_that_a_short_run_leaves_out_stay() -> None:
    """A short run over a full one changes only what it measured."""
    stored = document("2.13", {"10^6": {"A": {"s": 1.0}}, "10^8": {"A": {"s": 100.0}}})
    merged = merge(stored, document("2.13", {"10^6": {"A": {"s": 2.0}}}))
    assert merged["results"] == {"10^6": {"A": {"s": 2.0}}, "10^8": {"A": {"s": 100.0}}}


def test_a_case_without_a_loader_changes_nothing() -> None:
    """A run of some loaders alone, none of which has a part in a case, leaves what is stored of it."""
    stored = document("2.13", {"rows of 8": {"A": {"s": 1.0}}})
    assert merge(stored, document("2.14", {"rows of 8": {}}))["results"] == stored["results"]
    assert list(walk({"rows of 8": {}})) == []


def test_the_same_command_with_the_same_packages_takes_the_place_of_the_older_run() -> None:
    """The list of runs does not grow when the suite is run again; a part that is run again is one more of them."""
    stored = merge(document("2.13", {}), document("2.14", {}))
    merged = merge(stored, {**document("2.13", {}), "time": "later"})
    part = merge(merged, {**document("2.13", {}), "command": "python -m benchmarks.speed --case A", "time": "last"})
    assert [(run["machine"]["versions"]["torch"], run["time"]) for run in part["runs"]] == [
        ("2.14", "now"),
        ("2.13", "later"),
        ("2.13", "last"),
    ]


def test_figures_have_four_digits() -> None:
    """Rounding reaches every level, and leaves counts alone."""
    assert rounded({"a": [1.23456, {"b": 123456.0}], "n": 123456}) == {"a": [1.235, {"b": 123500.0}], "n": 123456}


def test_walk_finds_every_measured_case() -> None:
    """Cases lie at any depth."""
    results = {"a": {"b": {"s": 1.0}, "c": MISSING}, "d": {"s": 2.0}}
    assert [path for path, _ in walk(results)] == [("a", "b"), ("a", "c"), ("d",)]

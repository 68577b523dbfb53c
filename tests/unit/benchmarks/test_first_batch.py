"""The benchmarks of first batches and first IDs: that they measure what they say."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks._sections import first_batch as section
from benchmarks.competitors.first_ids import Move, litdata_chunks
from benchmarks.competitors.ours import Ours
from benchmarks.first_batch import LARGEST_FILES, chosen, compare, first_ids, first_job, next_job, num_steps, summary

LENGTH = 12_800
READ = {"outcome": "read", "s": 2.0, "processor_s": 1.0, "more_memory_mib": 3.0}


def test_ours_goes_on_at_the_saved_position(tmp_path: Path) -> None:
    """The first batch of one rank after two is the one that an epoch on one rank has there."""
    before = first_job(LENGTH, tmp_path)
    saving = Ours().open(before)
    list(islice(saving.steps(), num_steps(LENGTH)))
    job = next_job(before, [saving.state()])
    whole = Ours().open(next_job(first_job(LENGTH, tmp_path), []))
    assert job.steps_done == num_steps(LENGTH) == 1
    assert first_ids(Ours(), job) == list(islice(whole.steps(), 2))[1]


@pytest.mark.slow
def test_ours_is_measured_on_real_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes save, and a third goes on alone."""
    monkeypatch.chdir(Path(__file__).parents[3])
    found = compare(LENGTH, 1, [Ours()])["resumable_data"]
    assert (found["outcome"], found["times_ours"]) == ("read", 1.0)
    assert found["s"] > 0


def test_the_global_batch_stays() -> None:
    """What one rank reads in a step is what two read before, and at least a step is done."""
    before = first_job(LENGTH, Path())
    assert next_job(before, []).batch_size == before.batch_size * before.num_replicas == before.global_batch
    assert [num_steps(length) for length in (1280, 10**6)] == [1, 78]


def test_loaders_with_files_are_left_out_where_those_would_be_too_many() -> None:
    """Ours is always there: it is what others are measured by."""
    small, large = (chosen("", length) for length in (LARGEST_FILES, 10 * LARGEST_FILES))
    assert {one.name for one in small} - {one.name for one in large} == {"MosaicML Streaming", "OLMo-core", "LitData"}
    assert [one.name for one in chosen("Streaming", 10**6)] == ["resumable_data", "MosaicML Streaming"]
    assert [one.name for one in chosen("Streaming", 10**7)] == ["resumable_data"]


def test_ratios_are_of_one_turn() -> None:
    """A slow turn of the machine is slow for both; what gave no time has its answer, also in a later turn."""
    refused = {"outcome": "refused", "why": "no"}
    turns = [READ, {**READ, "processor_s": 2.0}, {**READ, "processor_s": 4.0}]
    theirs = [{**one, "processor_s": 10 * one["processor_s"]} for one in turns]  # type: ignore[operator]
    found = summary({"resumable_data": turns, "A": theirs, "B": [refused], "C": [READ, refused]})
    assert found["A"] == {**READ, "processor_s": 20.0, "times_ours": 10.0}
    assert found["resumable_data"]["times_ours"] == 1.0
    assert found["B"] == found["C"] == refused


def test_the_page_has_a_row_for_each_and_what_was_said() -> None:
    """A refusal is a word in the table, and its sentence below."""
    results: Mapping[str, Any] = {
        "1000000 samples": {"A": {**READ, "times_ours": 5.0}, "B": {"outcome": "refused", "why": "never"}}
    }
    lines = section(results).splitlines()
    assert lines[2:4] == ["| 10^6 | A | 1 s | 5.00 x | 2 s | 3 MiB |", "| 10^6 | B | refuses |  |  |  |"]
    assert lines[-1] == "* B: `never`"


@pytest.mark.parametrize("after", [4, 6, 16])
def test_simulated_ids_of_litdata_are_those_of_its_dataset_with_files(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own dataset on 3 chunks that were written gives the same first IDs."""
    litdata = pytest.importorskip("litdata", reason="LitData is not installed: make bench installs it")
    cache = litdata.streaming.cache.Cache(str(tmp_path / "chunks"), chunk_size=4096)
    for number in range(10_000):
        cache[number] = number
    cache.done()
    cache.merge()
    move = Move(length=10_000, before=8, after=after, batch_size=6, percent=10)

    def loader(rank: int, num_replicas: int, batch_size: int) -> Any:
        monkeypatch.setenv("WORLD_SIZE", str(num_replicas))
        monkeypatch.setenv("GLOBAL_RANK", str(rank))
        dataset = litdata.StreamingDataset(str(tmp_path / "chunks"), shuffle=True, seed=7)
        return litdata.StreamingDataLoader(dataset, batch_size=batch_size, num_workers=0)

    saving = loader(0, move.before, move.batch_size)
    list(islice(saving, move.steps_done))
    following = loader(after - 1, after, move.batch_size_after)
    following.load_state_dict(saving.state_dict())
    assert litdata_chunks(move) == next(iter(following)).tolist()

"""The gate: all go on, or none, and nobody waits for one that failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resumable_data.errors import UsageError
from resumable_data.validation.rehearsal import gate as module
from resumable_data.validation.rehearsal.gate import Failure, Gate, StoppedError


def run_all(folder: Path, acts: list[Callable[[], Any]]) -> tuple[list[Any], dict[int, list[Failure]]]:
    """What each process, a thread here, got of one gate; and what those were told that did not come to it."""
    results: list[Any] = [None] * len(acts)
    stuck: dict[int, list[Failure]] = {}

    def of_rank(rank: int) -> None:
        gate = Gate(folder, rank, len(acts), lambda failures: stuck.update({rank: failures}))
        try:
            results[rank] = gate.run(acts[rank])
        except StoppedError as error:
            results[rank] = error
        finally:
            gate.close()

    threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, stuck


def fail(error: BaseException) -> Any:
    raise error


def test_all_go_on_together(tmp_path: Path) -> None:
    """Each has what its own code returned, once all have returned."""
    done: list[int] = []

    def slow() -> int:
        time.sleep(0.2)
        done.append(1)
        return 1

    results, stuck = run_all(tmp_path, [lambda: 0, slow, lambda: 2])
    assert (results, stuck, done) == ([0, 1, 2], {}, [1])


def test_a_failure_is_told_to_all(tmp_path: Path) -> None:
    """With the traceback of the job's own code, and without lines of this package."""
    results, stuck = run_all(tmp_path, [lambda: 0, lambda: fail(ZeroDivisionError("mine")), lambda: 2])
    assert not stuck
    for one in results:
        assert isinstance(one, StoppedError)
        assert one.is_together
        ((rank, is_own, text),) = [(f.rank, f.is_own, f.text) for f in one.failures]
        assert (rank, is_own) == (1, True)
        assert text.startswith("Traceback")
        assert text.endswith("ZeroDivisionError: mine")
        assert 'gate.py", line' not in text.replace("test_gate.py", "")


def test_what_this_package_refuses_is_told_in_a_line(tmp_path: Path) -> None:
    """Without a traceback; and a job that wants to end the process does not."""
    results, _ = run_all(tmp_path, [lambda: fail(UsageError("no")), lambda: fail(SystemExit(3))])
    first, second = (one.failures for one in results)
    assert first == second
    assert {(one.rank, one.is_own) for one in first} == {(0, False), (1, True)}
    assert "UsageError: no" in [one.text for one in first]


def test_one_that_waits_elsewhere_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not come out of the user's code learns of the failure in a thread of its own."""
    monkeypatch.setattr(module, "STUCK_S", 0.3)
    is_told = threading.Event()

    def wait() -> None:
        with pytest.raises(StoppedError):
            watcher.run(lambda: is_told.wait(20))

    watcher = Gate(tmp_path, 1, 2, lambda failures: is_told.set())
    results, _ = run_all(tmp_path, [lambda: fail(ValueError("x"))])  # alone, so it does not wait for the other
    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(20)
    watcher.close()
    assert is_told.is_set()
    assert isinstance(results[0], StoppedError)


def test_a_failure_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another process never comes, the one that failed says that not all know."""
    monkeypatch.setattr(module, "STUCK_S", 0.1)
    gate = Gate(tmp_path, 0, 2, lambda failures: None)
    with pytest.raises(StoppedError) as caught:
        gate.run(lambda: fail(ValueError("x")))
    gate.close()
    assert not caught.value.is_together

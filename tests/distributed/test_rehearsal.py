"""A rehearsal promotes a clean move, and rejects each spoiled one by the check that is there for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from resumable_data.checkpoint import load_checkpoint
from resumable_data.order import Shuffle
from resumable_data.validation import Verdict
from resumable_data.validation.checks import CHECKS
from tests.distributed.ranks import launch_ranks, run_ranks
from tests.distributed.rehearsed import (
    Built,
    Parts,
    clean,
    fail_alone,
    rehearse_here,
    save_and_record,
    save_inside_and_record,
)


def only_model(built: Built, path: Path) -> None:
    models = {name: built.job.state[name] for name in ("model", "average", "teacher")}
    load_checkpoint(path, models, allow={"only_in_checkpoint"})


def without_optimizer(built: Built, path: Path) -> None:
    state = {name: part for name, part in built.job.state.items() if name != "optimizer"}
    load_checkpoint(path, state, loader=built.loader, allow={"only_in_checkpoint", "step_counters"})


def all_but(*names: str) -> Callable[[Built, Path], None]:
    def load(built: Built, path: Path) -> None:
        state = {name: part for name, part in built.job.state.items() if name not in names}
        load_checkpoint(path, state, loader=built.loader, allow={"only_in_checkpoint"})

    return load


def states(built: Built) -> list[dict[str, Any]]:
    return [built.optimizer.state[one] for group in built.optimizer.param_groups for one in group["params"]]


def swap_moments(built: Built) -> None:
    moments = {name: built.optimizer.state[one] for name, one in built.model.named_parameters()}
    first, second = (next(state for name, state in moments.items() if f"{which}.weight" in name) for which in WHICH)
    first["exp_avg"], second["exp_avg"] = second["exp_avg"], first["exp_avg"]


WHICH = ("first", "second")


def set_cursor(**changes: int) -> Callable[[Built], None]:
    def act(built: Built) -> None:
        cursor = built.loader.cursor
        new = {name: getattr(cursor, name) + by for name, by in changes.items()}
        built.loader.load_state_dict(msgspec.structs.replace(cursor, coverage=(), **new))

    return act


def load_other_order(built: Built, path: Path) -> None:
    """A loader that takes over the counts of the checkpoint, and not its order."""
    load_checkpoint(path, built.job.state, allow={"only_in_checkpoint"})
    saved = read_cursor(path)
    built.loader.load_state_dict(msgspec.structs.replace(saved, recipe=built.loader.cursor.recipe, coverage=()))


def load_halved(built: Built, path: Path) -> None:
    load_checkpoint(path, built.job.state, loader=built.loader, allow={"global_batch"})


def load_cast(built: Built, path: Path) -> None:
    load_checkpoint(path, built.job.state, loader=built.loader, allow={"dtype"})


def read_cursor(path: Path) -> Any:
    from resumable_data.checkpoint.manifest import read_manifest

    manifest = read_manifest(path)
    assert manifest is not None
    return manifest.decode_cursor()


def round_weight(built: Built) -> None:
    built.model.second.bias.copy_(built.model.second.bias.bfloat16())


def group(number: int, **changes: float) -> Callable[[Built], object]:
    return lambda built: built.optimizer.param_groups[number].update(changes)


# What is spoiled, the check that finds it, and the code of its finding.
SABOTAGES: dict[str, tuple[Parts, str, str]] = {
    "weights only": (Parts(load=only_model), "state", "RD950"),
    "fresh optimizer": (Parts(load=without_optimizer), "state", "RD950"),
    "moments swapped": (Parts(after_load=swap_moments), "state", "RD947"),
    "learning rate of one group": (Parts(after_load=group(1, lr=2e-3)), "state", "RD948"),
    "weight decay of one group": (Parts(after_load=group(0, weight_decay=0.2)), "state", "RD948"),
    "step counter off by one": (Parts(after_load=lambda b: [s["step"].add_(1) for s in states(b)]), "state", "RD949"),
    "scheduler one ahead": (Parts(after_load=lambda built: built.scheduler.step()), "state", "RD949"),
    "scheduler counting microbatches": (Parts(steps_scheduler_by=3), "counters", "RD986"),
    "average not loaded": (Parts(load=all_but("average")), "state", "RD945"),
    "another teacher": (Parts(after_load=lambda built: built.teacher.first.bias.add_(1)), "state", "RD945"),
    "loss scaler lost": (Parts(load=all_but("scaler")), "state", "RD948"),
    "random states lost": (Parts(without=("rng",), load=all_but()), "state", "RD954"),
    "untied embedding": (Parts(is_tied=False), "load", "RD972"),
    "one weight rounded": (Parts(after_load=round_weight), "state", "RD945"),
    "a buffer in bfloat16, refused": (Parts(scale_dtype=torch.bfloat16), "load", "RD972"),
    "a buffer in bfloat16": (Parts(scale_dtype=torch.bfloat16, load=load_cast), "state", "RD944"),
    "a moment that is not a number": (
        Parts(after_load=lambda built: states(built)[1]["exp_avg_sq"].fill_(float("nan"))),
        "state",
        "RD951",
    ),
    "a zeroed moment": (Parts(after_load=lambda b: states(b)[1]["exp_avg_sq"].zero_()), "state", "RD952"),
    "wrong seed, refused": (Parts(options={"order": Shuffle(500, seed=1)}), "load", "RD972"),
    "wrong seed": (Parts(options={"order": Shuffle(500, seed=1)}, load=load_other_order), "samples", "RD984"),
    "cursor one update ahead": (Parts(after_load=set_cursor(applied=1, samples=12, offset=12)), "state", "RD949"),
    "cursor one sample late": (Parts(after_load=set_cursor(samples=1, offset=1)), "samples", "RD988"),
    "global batch halved, refused": (Parts(options={"global_batch": 6}), "load", "RD972"),
    "global batch halved": (Parts(options={"global_batch": 6}, load=load_halved), "state", "RD956"),
    "loss weight off by dp size": (Parts(factor=2.0), "first update", "RD911"),
    "dropout active in evaluation": (Parts(evaluation_dropout=0.5), "evaluation", "RD975"),
    "gradient accumulated twice": (Parts(times=2), "first update", "RD912"),
    "evaluation data changed": (Parts(example_seed=6), "logits", "RD976"),
    "tensor-parallel ranks counted as data-parallel": (
        Parts(kind="tp", options={"mesh": None, "data_axes": None}),
        "batch",
        "RD982",
    ),
    "ledger of the run": (Parts(options={"ledger": "THE_RUN"}), "build", "RD973"),
}

# The fast ones: of each stage, and of each way to find something.
FAST = (
    "weights only",
    "scheduler counting microbatches",
    "untied embedding",
    "wrong seed",
    "loss weight off by dp size",
    "dropout active in evaluation",
    "evaluation data changed",
    "a buffer in bfloat16",
    "ledger of the run",
)


def sabotaged(folder: str, names: tuple[str, ...], kind: str) -> dict[str, Verdict]:
    found = {}
    for name in names:
        parts = replace(SABOTAGES[name][0], kind=kind)
        if parts.options.get("ledger"):
            parts = replace(parts, options={"ledger": f"{folder}/run-ledger"})
        found[name] = rehearse_here(folder, parts)
    return found


def check_found(found: dict[str, Verdict]) -> None:
    for name, verdict in found.items():
        _, check, code = SABOTAGES[name]
        expected = "warm start" if code == "RD950" else "reject"
        assert verdict.verdict == expected, (name, verdict.to_text())
        assert verdict.exit_code == 1
        one = verdict.check(check)
        assert one is not None, (name, verdict.to_text())
        assert one.status in ("failed", "warm start"), (name, verdict.to_text())
        assert code in {finding.code for finding in one.findings}, (name, verdict.to_text())
        if expected == "reject":  # what comes after is not tried
            failed = {one.stage for one in verdict.failed}
            assert failed == {CHECKS[check].stage}, (name, verdict.to_text())
            assert verdict.checks[-1].name == "untouched"
        assert verdict.checks[-1].status == "passed", (name, verdict.to_text())


def check_clean(verdicts: list[Verdict], source: int, target: int, num_repeats: int = 2) -> None:
    verdict = verdicts[0]
    assert all(one == verdict for one in verdicts)
    assert (verdict.verdict, verdict.exit_code) == ("promote", 0), verdict.to_text()
    assert {check.name for check in verdict.checks} == set(CHECKS) - {"migration"}
    assert {check.status for check in verdict.checks} == {"passed"}, verdict.to_text()
    assert verdict.saved is not None
    assert verdict.now is not None
    assert (verdict.saved.dp_size, verdict.now.dp_size) == (source, target)
    assert verdict.batch is not None
    assert (verdict.batch.global_batch, verdict.batch.dp_size) == (12, target)
    assert verdict.tolerances.keys() == {"logits", "loss", "gradient_norm", "update_norm"}
    trace = verdict.check("trace")
    assert trace is not None
    assert f"20 updates, {num_repeats} repeats" in trace.summary


def test_a_clean_move_is_promoted_and_spoiled_ones_are_not(tmp_path: Path) -> None:
    """FSDP2 from 1 rank to 2 passes all checks; on one process, each sabotage is found by the check that is for it."""
    recorded = run_ranks(save_and_record, 1, str(tmp_path), "fsdp", 1)
    assert all(text.startswith("PASSED") for text in recorded[0]), recorded[0]
    before = sorted(tmp_path.rglob("*"))
    check_clean(run_ranks(clean, 2, str(tmp_path)), 1, 2, 1)
    check_found(run_ranks(sabotaged, 1, str(tmp_path), FAST, "plain")[0])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_every_sabotage_is_found(tmp_path: Path) -> None:
    """FSDP2 from 4 ranks to 2; and a shard that is missing is found before anything is built."""
    run_ranks(save_and_record, 4, str(tmp_path))
    check_clean(run_ranks(clean, 2, str(tmp_path)), 4, 2)
    names = tuple(name for name in SABOTAGES if SABOTAGES[name][0].kind == "fsdp")
    check_found(run_ranks(sabotaged, 2, str(tmp_path), names, "fsdp", timeout_s=900)[0])
    next((tmp_path / "checkpoint").glob("__2_*.distcp")).unlink()
    verdict = run_ranks(clean, 2, str(tmp_path))[0]
    assert (verdict.verdict, [one.name for one in verdict.checks]) == ("reject", ["files", "untouched"])
    assert "RD821" in {finding.code for finding in verdict.checks[0].findings}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "source", "target"), [("fsdp", 2, 4), ("fsdp", 4, 3), ("ddp", 4, 3)])
def test_other_moves_are_promoted(tmp_path: Path, kind: str, source: int, target: int) -> None:
    """To more ranks, to a number that divides nothing, and under DDP."""
    run_ranks(save_and_record, source, str(tmp_path), kind)
    check_clean(run_ranks(clean, target, str(tmp_path), kind), source, target)


@pytest.mark.slow
@pytest.mark.parametrize("has_in_flight", [False, True])
def test_a_move_inside_an_update_is_promoted(tmp_path: Path, has_in_flight: bool) -> None:
    """Saved on 2 ranks after a microbatch, with its gradients and without: nothing is replayed on 3."""
    parts = Parts(has_in_flight=has_in_flight)
    recorded = run_ranks(save_inside_and_record, 2, str(tmp_path), parts)
    assert all(text.startswith("PASSED") for text in recorded[0]), recorded[0]
    verdicts = run_ranks(rehearse_here, 3, str(tmp_path), parts)
    check_clean(verdicts, 2, 3, 1)
    coverage = verdicts[0].check("coverage")
    assert coverage is not None
    assert coverage.summary.count(f"proven: {12 * (25 + has_in_flight)} samples") == 2


@pytest.mark.slow
def test_tensor_parallel_ranks_are_no_data_parallel_ones(tmp_path: Path) -> None:
    """From a mesh of 2 x 2 to 1 x 2; a loader that counts all processes is found, and the mesh is in the verdict."""
    run_ranks(save_and_record, 4, str(tmp_path), "tp")
    verdict = run_ranks(clean, 2, str(tmp_path), "tp")[0]
    assert verdict.verdict == "promote", verdict.to_text()
    assert verdict.now is not None
    assert (verdict.now.axes, verdict.now.dp_size) == ((("dp", 1), ("tp", 2)), 1)
    check_found(run_ranks(sabotaged, 4, str(tmp_path), ("tensor-parallel ranks counted as data-parallel",), "tp")[0])


@pytest.mark.slow
def test_one_process_that_fails_ends_all(tmp_path: Path) -> None:
    """Also where the others wait for it in a call of their own: all end soon, and the verdict shows its traceback."""
    run_ranks(save_and_record, 2, str(tmp_path), "fsdp", 0)
    before = time.monotonic()
    first, second = launch_ranks(fail_alone, 2, str(tmp_path), timeout_s=100)
    assert time.monotonic() - before < 60
    told = first.error if first.value is None else first.value.to_text()
    for line in ("REJECT", "RD971 violation", "a fault in the user's code", "process 1", "in accumulate"):
        assert line in told, told
    assert "resumable_data/validation" not in told
    for one in (first, second):
        assert one.value is None or one.value.exit_code == 1

"""A rehearsal promotes a clean move, and rejects each spoiled one by the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from resumable_data.checkpoint import load_checkpoint
from resumable_data.order import Shuffle
from resumable_data.validation import Verdict
from resumable_data.validation.verdict import CHECKS
from tests.distributed.ranks import run_ranks
from tests.distributed.rehearsed import Built, Parts, clean, rehearse_here, save_and_record


def only_model(built: Built, path: Path) -> None:
    load_checkpoint(path, {"model": built.model}, allow={"only_in_checkpoint"})


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
    "loss scaler lost": (Parts(load=all_but("scaler")), "state", "RD948"),
    "random states lost": (Parts(without=("rng",), load=all_but()), "state", "RD954"),
    "untied embedding": (Parts(is_tied=False), "load", "RD972"),
    "one weight in another dtype": (Parts(after_load=round_weight), "state", "RD945"),
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
        expected = {"RD950": "warm start", "RD954": "unproven"}.get(code, "reject")
        assert verdict.verdict == expected, (name, verdict.to_text())
        assert verdict.exit_code == 1
        one = verdict.check(check)
        assert one is not None, (name, verdict.to_text())
        assert one.status in ("failed", "warm start", "unproven"), (name, verdict.to_text())
        assert code in {finding.code for finding in one.findings}, (name, verdict.to_text())
        if expected == "reject":  # what comes after is not tried
            failed = {one.stage for one in verdict.failed}
            assert failed == {CHECKS[check].stage}, (name, verdict.to_text())
            assert verdict.checks[-1].name == "untouched"
        assert verdict.checks[-1].status == "passed", (name, verdict.to_text())


def check_clean(verdicts: list[Verdict], num_ranks: int) -> None:
    verdict = verdicts[0]
    assert all(one == verdict for one in verdicts)
    assert (verdict.verdict, verdict.exit_code) == ("promote", 0), verdict.to_text()
    assert {check.name for check in verdict.checks} == set(CHECKS)
    assert {check.status for check in verdict.checks} == {"passed"}, verdict.to_text()
    assert verdict.saved is not None
    assert verdict.now is not None
    assert (verdict.saved.dp_size, verdict.now.dp_size) == (4, num_ranks)
    assert verdict.batch is not None
    assert (verdict.batch.global_batch, verdict.batch.dp_size) == (12, num_ranks)
    assert verdict.tolerances.keys() == {"logits", "loss", "gradient_norm", "update_norm"}
    trace = verdict.check("trace")
    assert trace is not None
    assert "20 updates, 2 repeats" in trace.summary


def test_a_clean_move_is_promoted_and_spoiled_ones_are_not(tmp_path: Path) -> None:
    """FSDP2 from 4 ranks to 2: each sabotage is found by the check that is there for it; the clean move passes all."""
    recorded = run_ranks(save_and_record, 4, str(tmp_path))
    assert all(text.startswith("PASSED") for text in recorded[0]), recorded[0]
    before = sorted(tmp_path.rglob("*"))
    check_clean(run_ranks(clean, 2, str(tmp_path)), 2)
    check_found(run_ranks(sabotaged, 2, str(tmp_path), FAST, "fsdp")[0])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_every_sabotage_is_found(tmp_path: Path) -> None:
    """Also on 3 ranks, and a shard that is missing, before anything is built."""
    run_ranks(save_and_record, 4, str(tmp_path))
    check_clean(run_ranks(clean, 3, str(tmp_path)), 3)
    check_found(run_ranks(sabotaged, 3, str(tmp_path), tuple(SABOTAGES), "fsdp", timeout_s=900)[0])
    next((tmp_path / "checkpoint").glob("__2_*.distcp")).unlink()
    verdict = run_ranks(clean, 2, str(tmp_path))[0]
    assert (verdict.verdict, [one.name for one in verdict.checks]) == ("reject", ["files", "untouched"])
    assert "RD821" in {finding.code for finding in verdict.checks[0].findings}


def grow(folder: str, kind: str) -> list[str]:
    return save_and_record(folder, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "source", "target"), [("fsdp", 2, 4), ("ddp", 4, 3)])
def test_other_moves_are_promoted(tmp_path: Path, kind: str, source: int, target: int) -> None:
    """FSDP2 from 2 ranks to 4, and DDP from 4 to 3."""
    run_ranks(grow, source, str(tmp_path), kind)
    verdict = run_ranks(clean, target, str(tmp_path), kind)[0]
    assert verdict.verdict == "promote", verdict.to_text()
    assert verdict.now is not None
    assert verdict.now.dp_size == target

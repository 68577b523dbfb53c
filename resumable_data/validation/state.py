"""Whether a program holds the state that a checkpoint holds, whoever loaded it: all of it, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.distributed.tensor import DTensor

from resumable_data.checkpoint.after_load import check_counters, digests_in_files
from resumable_data.checkpoint.capture import capture_run
from resumable_data.checkpoint.collective import gather_bytes, together
from resumable_data.checkpoint.differences import compare_keys, describe_program
from resumable_data.checkpoint.files.against_manifest import list_keys
from resumable_data.checkpoint.files.metadata import METADATA_NAME, parse_metadata
from resumable_data.checkpoint.gradients import InFlightGradients
from resumable_data.checkpoint.live_digest import gather_digests
from resumable_data.checkpoint.prepare import tensors_of
from resumable_data.checkpoint.program import ModelPart, OptimizerPart, Program, StatefulPart
from resumable_data.checkpoint.random_restore import RandomRestore
from resumable_data.checkpoint.reading import read
from resumable_data.checkpoint.run_manifest import RunManifest, read_run_manifest
from resumable_data.cursor import STATE_KEY
from resumable_data.sampler.seal import SEAL_KEY
from resumable_data.validation.state_findings import StateFinding, state_finding
from resumable_data.validation.state_report import StateReport, judge_state
from resumable_data.validation.transient_buffers import Told, compare_transient

if TYPE_CHECKING:
    from resumable_data.loader import ResumableLoader

_DIFFERENCES = {
    "only_in_checkpoint": "RD941",
    "only_in_program": "RD942",
    "shape": "RD943",
    "kind": "RD943",
    "dtype": "RD944",
}


def check_state(
    path: str | os.PathLike[str], state: Mapping[str, Any], loader: ResumableLoader | None = None
) -> StateReport:
    """Hold a program against the checkpoint that it was loaded from, by whatever means. Collective.

    Every tensor's digest is compared with that of the files, whatever the sharding, which reads the checkpoint once;
    plain values, settings, ties, counters and modes are compared too. Call it after the load and before training:
    nothing of the program is changed.

    Args:
        path: The checkpoint: one that `save_checkpoint` wrote, or of DCP with the same names.
        state: The program's parts by name, as for `save_checkpoint`.
        loader: Its loader.

    Raises:
        CheckpointError: The checkpoint cannot be read.
        UsageError: The state is none that could be saved.
    """
    path = Path(path)
    program = together(lambda: Program(state, loader))
    try:
        check = _StateCheck(path, program, loader)
        check.keys()
        check.tensors()
        check.values()
        check.moments()
    finally:
        program.forget()
    check.counters()
    check.against_run(together(lambda: capture_run(state, loader)), together(lambda: read_run_manifest(path)))
    findings = tuple(sorted(check.findings, key=lambda one: one.precedence))
    return StateReport(
        path=str(path),
        verdict=judge_state(findings),
        tensors=check.num_tensors,
        values=check.num_values,
        findings=findings,
    )


def check_unchanged(state: Mapping[str, Any], act: Callable[[], object]) -> tuple[StateFinding, ...]:
    """Make sure that something, say a forward and backward on an example, changes no model or optimizer. Collective.

    Buffers that a forward is meant to update, as BatchNorm's running statistics, are named like everything else:
    evaluate in ``eval()`` mode.

    Args:
        state: The program's parts by name.
        act: What is done between two looks at all tensors; gradients may be left behind.
    """
    before = _digests(state)
    act()
    after = _digests(state)
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    return (state_finding("RD957", changed, expected="the values before", found="others"),) if changed else ()


def _digests(state: Mapping[str, Any]) -> dict[str, str]:
    without_gradients = {name: part for name, part in state.items() if not isinstance(part, InFlightGradients)}
    program = together(lambda: Program(without_gradients))
    try:
        return gather_digests(tensors_of(together(program.state)))
    finally:
        program.forget()


class _StateCheck:
    """One check, step by step; each is collective, and adds to `findings`."""

    def __init__(self, path: Path, program: Program, loader: ResumableLoader | None) -> None:
        self._path, self._program, self._loader = path, program, loader
        metadata = together(lambda: parse_metadata((path / METADATA_NAME).read_bytes()))
        self._random = RandomRestore(path, program.random, metadata)
        apart = self._random.keys
        self._saved = {
            key: what
            for key, what in list_keys(metadata).items()
            if key not in apart
            and not key.endswith((STATE_KEY, SEAL_KEY))
            and key.partition(".")[0] not in program.gradients
        }
        random = self._random.names
        self._state = {name: value for name, value in together(program.state).items() if name not in random}
        self._flat = flatten_state_dict(self._state)[0]
        self._is_new = {name for name, part in program.parts.items() if isinstance(part, OptimizerPart) and part.is_new}
        self._common: list[str] = []
        self.findings: list[StateFinding] = []
        self.num_tensors = self.num_values = 0

    def _add(self, code: str, keys: list[str], *, expected: str, found: str) -> None:
        of_model = any(isinstance(self._program.parts.get(key.partition(".")[0]), ModelPart) for key in keys)
        self.findings.append(state_finding(code, keys, expected=expected, found=found, is_of_model=of_model))

    def keys(self) -> None:
        """Both have the same keys, of the same kinds and shapes."""
        by_kind: dict[str, list[str]] = {}
        differences = compare_keys(self._saved, describe_program(self._flat))
        for one in differences:
            by_kind.setdefault(one.kind, []).append(one.key)
        for kind, keys in by_kind.items():
            first = next(one for one in differences if one.kind == kind)
            self._add(_DIFFERENCES[kind], keys, expected=first.saved, found=first.now)
        apart = {one.key for one in differences if one.kind != "dtype"}
        self._common = [key for key in self._saved if key in self._flat and key not in apart]

    def tensors(self) -> None:
        """All tensors are what the files hold, cast where the type is another one."""
        live = {key: self._flat[key] for key in self._common if isinstance(self._flat[key], torch.Tensor)}
        self.num_tensors = len(live)
        expected, found = digests_in_files(self._path, live), gather_digests(live)
        wrong = [key for key in live if expected[key] != found[key]]
        owners = {digest: key for key, digest in expected.items()}
        anew = [key for key in wrong if key.partition(".")[0] in self._is_new]
        if anew:
            what = "not stepped yet"
            self._add("RD950", sorted(self._is_new), expected="the saved states", found=what)
        for key in wrong:
            if key in anew:
                continue
            owner = owners.get(found[key])
            part = self._program.parts.get(key.partition(".")[0])
            code = "RD945" if isinstance(part, ModelPart) else "RD961"
            if isinstance(part, OptimizerPart):
                code = "RD947" if owner is not None else "RD946"
            what = f"that of {owner}" if owner is not None else f"digest {found[key]}"
            self._add(code, [key], expected=f"digest {expected[key]}", found=what)

    def values(self) -> None:
        """All plain values are what the files hold."""
        live = {key: self._flat[key] for key in self._common if not isinstance(self._flat[key], torch.Tensor)}
        self.num_values = len(live)
        saved: dict[str, Any] = dict.fromkeys(live)
        read(self._path, saved)
        for key in sorted(live):
            if _plain(saved[key]) != _plain(live[key]):
                self._add("RD948", [key], expected=repr(saved[key])[:200], found=repr(live[key])[:200])

    def moments(self) -> None:
        """States of optimizers, and parameters, are finite; moments of stepped parameters are not zero everywhere.

        A buffer may hold infinite values, as a mask does.
        """
        buffers = self._buffers()
        own = {
            key: _look(value)
            for key, value in tensors_of(self._state).items()
            if value.is_floating_point() and key not in buffers
        }
        everyones: dict[str, list[bool]] = {}
        for part in gather_bytes(msgspec.json.encode(own)):
            for key, (is_finite, is_zero) in msgspec.json.decode(part, type=dict[str, tuple[bool, bool]]).items():
                known = everyones.setdefault(key, [True, True])
                known[0] &= is_finite
                known[1] &= is_zero
        broken = [key for key, (is_finite, _) in everyones.items() if not is_finite]
        if broken:
            self._add("RD951", broken, expected="finite values", found="infinite ones or NaN")
        zero = [key for key, (_, is_zero) in everyones.items() if is_zero and self._is_stepped_moment(key)]
        if zero:
            self._add("RD952", zero, expected="the moments of steps", found="zeros")

    def _buffers(self) -> set[str]:
        parts = self._program.parts.items()
        models = [(name, part.model) for name, part in parts if isinstance(part, ModelPart)]
        return {
            f"{name}.{full}"
            for name, model in models
            for wrapped, _ in model.named_buffers()
            for full in _get_fqns(model, wrapped)
        }

    def _is_stepped_moment(self, key: str) -> bool:
        name, _, rest = key.partition(".")
        if not isinstance(self._program.parts.get(name), OptimizerPart) or not rest.startswith("state."):
            return False
        step = self._flat.get(f"{key.rpartition('.')[0]}.step")
        return step is not None and not key.endswith(".step") and float(step) > 0

    def counters(self) -> None:
        """Optimizers, schedulers and the cursor counted the same updates."""
        parts = self._program.parts
        optimizers = [name for name, part in parts.items() if isinstance(part, OptimizerPart) and not part.is_new]
        schedulers = [name for name, part in parts.items() if isinstance(part, StatefulPart)]
        cursor = None if self._loader is None else self._loader.cursor
        faults = check_counters(self._state, optimizers, schedulers, cursor)
        if faults:
            self._add("RD949", [*optimizers, *schedulers], expected="equal counts", found=faults)

    def against_run(self, now: RunManifest, saved: RunManifest | None) -> None:
        """What a run manifest tells beside the state: ties, batch, random states, modes."""
        if saved is None:
            self._add("RD958", ["run manifest"], expected="one", found="none")
            return
        for name in saved.models.keys() & now.models.keys():
            before, after = set(saved.models[name].tied), set(now.models[name].tied)
            for group in sorted(before ^ after):
                what = ("tied", "apart") if group in before else ("apart", "tied")
                self._add("RD953", [f"{name}.{one}" for one in group], expected=what[0], found=what[1])
        self._transient_buffers(now, saved)
        if saved.batch is not None and now.batch is not None:
            then, here = (f"{one.global_batch} {one.unit}" for one in (saved.batch, now.batch))
            if then != here:
                self._add("RD956", ["global batch"], expected=then, found=here)
        if saved.random_states and not now.random_states:
            self._add("RD954", ["random states"], expected=saved.random_states, found="none")
        for field, (then, here) in _modes(saved, now).items():
            self._add("RD955", [field], expected=then, found=here)

    def _transient_buffers(self, now: RunManifest, saved: RunManifest) -> None:
        """Buffers that checkpoints do not hold are what they were, on every process. Collective."""
        told: Told = {"RD959": {}, "RD960": {}}
        for name in sorted(saved.models.keys() & now.models.keys()):
            for key, one in compare_transient(saved.models[name], now.models[name]).items():
                told[one[0]][f"{name}.{key}"] = one[1:]
        everyones = [msgspec.json.decode(part, type=Told) for part in gather_bytes(msgspec.json.encode(told))]
        for code in told:
            found = {key: texts for one in reversed(everyones) for key, texts in one[code].items()}
            for key, (expected, other) in sorted(found.items()):
                self._add(code, [key], expected=expected, found=other)


def _modes(saved: RunManifest, now: RunManifest) -> dict[str, tuple[str, str]]:
    """Modes, versions and precision that differ."""
    before, after = ({**one.precision, **_environment(one)} for one in (saved, now))
    return {
        name: (before[name], after[name])
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    }


def _environment(run: RunManifest) -> dict[str, str]:
    one = run.environment
    if one is None:
        return {}
    return {"torch": one.torch, "device": one.device, **{name: str(value) for name, value in one.modes.items()}}


def _plain(value: Any) -> Any:
    """A value as it comes back from a file: keys of dicts are text there, and tuples may be lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return "nan" if isinstance(value, float) and value != value else value


def _look(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Whether what this process holds is finite, and zero everywhere."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool(torch.isfinite(local).all()), not bool(local.any())

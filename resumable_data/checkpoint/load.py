"""Loading: files are checked, what is in them is held against the program in both directions, and then it is read."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from resumable_data.checkpoint.collective import alone_is_meant, on_first, together
from resumable_data.checkpoint.differences import ALLOWANCES, Difference, compare_keys, describe_program, refuse
from resumable_data.checkpoint.files.against_manifest import list_keys
from resumable_data.checkpoint.files.metadata import METADATA_NAME, parse_metadata
from resumable_data.checkpoint.files.verify import verify_checkpoint
from resumable_data.checkpoint.live_digest import gather_digests
from resumable_data.checkpoint.manifest import TensorKey, read_manifest
from resumable_data.checkpoint.prepare import LOADER_NAME, tensors_of
from resumable_data.checkpoint.program import Program, skeleton
from resumable_data.checkpoint.random_restore import RandomRestore
from resumable_data.checkpoint.running import wait_for_running
from resumable_data.cursor import STATE_KEY
from resumable_data.cursor.recipe import ALLOWED_CHANGES
from resumable_data.errors import CheckpointError, SealError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sampler.seal import SEAL_KEY, check_seal
from resumable_data.sampler.state import FRESH_START

if TYPE_CHECKING:
    from resumable_data.checkpoint.files.metadata import Metadata
    from resumable_data.checkpoint.manifest import Manifest
    from resumable_data.loader import ResumableLoader

LEVEL = "directory"


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What `load_checkpoint` did.

    Attributes:
        path: The checkpoint.
        has_manifest: Whether it had one, and was compared with it.
        level: How far its files were checked, see `verify_checkpoint`.
        differences: What differed from the program, and was allowed.
        allowances: Those that were needed, for the next `save_checkpoint`.
        values: The plain values of the state, as loaded, by name.
        random_states: What was done with random states: ``"restored"``, or that they were seeded anew, and why; empty
            where none were loaded.
    """

    path: str
    has_manifest: bool
    level: str
    differences: tuple[Difference, ...]
    allowances: tuple[str, ...]
    values: dict[str, Any]
    random_states: str = ""


def load_checkpoint(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    loader: ResumableLoader | None = None,
    allow: Collection[str] = (),
    level: str = LEVEL,
) -> Loaded:
    """Load what `save_checkpoint` saved, on any number of processes, or say why not. Collective.

    The first process checks the files, see `verify_checkpoint`. Then each key of the checkpoint must be in the program
    and the reverse, with the same shape and type. Then models, optimizers, all other parts, the loader and last the
    random generators take over their state. A save that still runs beside training is waited for.

    Args:
        path: The checkpoint.
        state: As for `save_checkpoint`.
        loader: As for `save_checkpoint`.
        allow: What may differ, by name: ``"only_in_checkpoint"``, ``"only_in_program"``, ``"dtype"`` (values are cast),
            ``"no_manifest"`` (a checkpoint that somebody else saved), and what the loader's `load_state_dict` takes.
        level: How far files are checked: ``"structure"``, ``"directory"`` or ``"payload"``.

    Raises:
        CheckpointError: The files are damaged, of several saves, or without a manifest; or they and the program differ.
            The program is as it was.
        StateError: There are `RandomStates`, of other ranks, and that is to be refused. The program is as it was.
        SealError: Processes that saved did not agree, or files of two saves are mixed. What was read by then is in the
            program: do not go on from it.
        RecipeMismatchError: The loader's cursor was counted under another recipe; the program is as it was, where there
            is a manifest.
        UsageError: `allow` names what cannot be allowed.
    """
    path = Path(path)
    names = {allow} if isinstance(allow, str) else set(allow)
    of_loader = names - ALLOWANCES
    unknown = sorted(of_loader - ALLOWED_CHANGES - {FRESH_START})
    if unknown:
        raise UsageError(f"allow= takes {sorted(ALLOWANCES | ALLOWED_CHANGES)}, got {unknown}")
    wait_for_running()
    on_first(lambda: _require_sound(path, level, needs_manifest="no_manifest" not in names))
    manifest = together(lambda: read_manifest(path))
    program = Program(state)
    metadata = together(lambda: parse_metadata((path / METADATA_NAME).read_bytes()))
    random = RandomRestore(path, program.random, metadata)
    like = {name: value for name, value in together(program.state).items() if name not in random.names}
    if loader is not None:
        like[LOADER_NAME] = loader.state_dict()
    keys = skeleton(like)
    differences = together(lambda: _compare(path, metadata, like, random.keys, names & ALLOWANCES))
    cursor = None if manifest is None else manifest.decode_cursor()
    if loader is not None and cursor is not None:
        together(lambda: loader.check_state(cursor, of_loader))
    random.prepare()
    template = _without(like, {one.key for one in differences if one.kind == "only_in_program"})
    together(lambda: _read(path, template))
    if loader is not None:
        _check_loader(template, None if manifest is None else int(manifest.nonce, 16))
    values = program.restore({name: template[name] for name in program.parts if name in template}, keys)
    if manifest is not None:
        _check_values(path, manifest, program)
    if loader is not None:
        loader.load_state_dict(template[LOADER_NAME], allow=of_loader)
    return Loaded(
        path=str(path),
        has_manifest=manifest is not None,
        level=level,
        differences=tuple(differences),
        allowances=tuple(sorted({one.kind for one in differences} | (names & {"no_manifest"}) | of_loader)),
        values=values,
        random_states=random.finish(),
    )


def _require_sound(path: Path, level: str, *, needs_manifest: bool) -> bytes:
    report = verify_checkpoint(path, level)
    if report.verdict == "damaged":
        raise CheckpointError(f"{shown(path)} was not loaded; the program is as it was.\n{report.to_text()}")
    if needs_manifest and not report.has_manifest:
        raise CheckpointError(
            f"expected a manifest in {shown(path)}, found none: the save was not finished, or was not made by "
            "save_checkpoint(). Whether its files are all of one save cannot be known. Nothing was loaded; load an "
            'earlier checkpoint, or go on without that knowledge with allow={"no_manifest"}.'
        )
    return b""


def _compare(
    path: Path, metadata: Metadata, state: dict[str, Any], apart: set[str], allowed: set[str]
) -> list[Difference]:
    """What differs between the checkpoint, without the keys `apart`, and the program.

    Raises:
        CheckpointError: Something that is not allowed to.
    """
    in_checkpoint = {key: what for key, what in list_keys(metadata).items() if key not in apart}
    differences = compare_keys(in_checkpoint, describe_program(flatten_state_dict(state)[0]))
    refuse(path, differences, allowed)
    return differences


def _without(state: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """The state without some flat keys: DCP must not be asked for what is not there."""
    if not keys:
        return state

    def prune(value: Any, where: tuple[str, ...]) -> Any:
        if not isinstance(value, Mapping):
            return value
        kept = {key: item for key, item in value.items() if ".".join((*where, str(key))) not in keys}
        return {key: prune(item, (*where, str(key))) for key, item in kept.items()}

    pruned: dict[str, Any] = prune(state, ())
    return pruned


class _Planner(DefaultLoadPlanner):
    """Reads plain values without running what is pickled in them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        data = torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            from torch.distributed.checkpoint._nested_dict import set_element

            set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], data)
        else:
            self.state_dict[read_item.dest_index.fqn] = data


def _read(path: Path, state: dict[str, Any]) -> None:
    with alone_is_meant() as alone:
        dcp.load(state, checkpoint_id=path, planner=_Planner(), no_dist=alone)


def _check_values(path: Path, manifest: Manifest, program: Program) -> None:
    """Hold the program's tensors against the digests that were taken before the save, where there are any. Collective.

    Raises:
        CheckpointError: Some are not what was saved.
        DisagreementError: Processes that hold the same part of a tensor hold different values.
    """
    if manifest.checksums != "digest":
        return
    tensors = tensors_of(together(program.state))
    saved = {key: what for key, what in manifest.keys.items() if isinstance(what, TensorKey) and what.digest}
    # a tensor of another type was cast, as was allowed: its bits are not those that were saved
    alike = {
        key: tensor
        for key, tensor in tensors.items()
        if key in saved and saved[key].dtype == str(tensor.dtype).removeprefix("torch.")
    }
    found = gather_digests(alike)
    wrong = [key for key, digest in found.items() if digest != saved[key].digest]
    if wrong:
        raise CheckpointError(
            f"{shown(path)}: expected tensors as they were saved, found {len(wrong)} of {len(found)} that are not: "
            f"{', '.join(wrong[:4])}{' ...' if len(wrong) > 4 else ''}. The program holds something else than what was "
            "saved: do not go on from it. Check the files with level='payload'; if they are sound, something changed "
            "the values while they were read."
        )


def _check_loader(state: dict[str, Any], nonce: int | None) -> None:
    """The seal is of one save, and of the one that the manifest is of. Collective."""

    def check() -> None:
        of_loader = state[LOADER_NAME]
        found = check_seal(of_loader[SEAL_KEY], of_loader[STATE_KEY].numpy().tobytes())
        if nonce is not None and found not in (0, nonce):
            raise SealError(
                f"expected files of the save {nonce:016x}, as the manifest says, found some of {found:016x}: two saves "
                "are mixed in one directory. Do not go on from what was read; load an earlier checkpoint."
            )

    together(check)

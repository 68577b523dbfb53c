"""From a sound checkpoint into a program: both are compared, the files are read, the parts take over."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from resumable_data.checkpoint.after_load import check_casts, check_counters, check_digests, check_tied
from resumable_data.checkpoint.collective import together
from resumable_data.checkpoint.differences import (
    ALLOWANCES,
    STEP_COUNTERS,
    Difference,
    compare_keys,
    describe_program,
    refuse,
)
from resumable_data.checkpoint.files.against_manifest import list_keys
from resumable_data.checkpoint.files.metadata import METADATA_NAME, parse_metadata
from resumable_data.checkpoint.gradients import GRADIENTS_KEY, PHASE_KEY
from resumable_data.checkpoint.prepare import LOADER_NAME, tensors_of
from resumable_data.checkpoint.program import OptimizerPart, StatefulPart, skeleton
from resumable_data.checkpoint.random_restore import RandomRestore
from resumable_data.checkpoint.reading import read, with_text_keys
from resumable_data.checkpoint.settings import compare_settings, settings_of
from resumable_data.cursor import STATE_KEY
from resumable_data.errors import CheckpointError, SealError
from resumable_data.ledger.frames import shown
from resumable_data.sampler.seal import SEAL_KEY, check_seal
from resumable_data.sampler.state import read_state

if TYPE_CHECKING:
    from resumable_data.checkpoint.manifest import Manifest
    from resumable_data.checkpoint.program import Program
    from resumable_data.cursor import RecipeChange
    from resumable_data.loader import ResumableLoader


class TakingOver:
    """One load. All methods are collective, and called in this order.

    Args:
        path: The checkpoint, found sound.
        program: What takes over.
        loader: Its loader; None without one.
        manifest: The checkpoint's; None without one.
        allowed: What may differ, by name.
        declared: What the cursor records beside changes of its recipe.

    Attributes:
        differences: What differs, and is allowed to.
        overridden: Settings that the checkpoint and the program have otherwise.
        needed: Allowances that were needed.
        discarded: Rows that are read again, see `Loaded`.
        random_states: What was done with random states.
    """

    def __init__(
        self,
        path: Path,
        program: Program,
        loader: ResumableLoader | None,
        manifest: Manifest | None,
        allowed: set[str],
        declared: Sequence[RecipeChange] = (),
    ) -> None:
        self._declared = declared
        self._path, self._program, self._loader, self._manifest = path, program, loader, manifest
        self._allowed, self._of_loader = allowed & ALLOWANCES, allowed - ALLOWANCES
        self._metadata = together(lambda: parse_metadata((path / METADATA_NAME).read_bytes()))
        self._random = RandomRestore(path, program.random, self._metadata)
        self._state: dict[str, Any] = {}
        self._skeleton: Any = None
        self._absent: set[str] = set()
        self.differences: list[Difference] = []
        self.overridden: list[Difference] = []
        self.needed = set(self._of_loader)
        self.discarded = 0
        self.random_states = ""

    def compare(self) -> None:
        """Hold the checkpoint and the program against each other; nothing of the program changes.

        Raises:
            CheckpointError: They differ in what is not allowed to.
            StateError: The loader or the random states do not take what was saved.
        """
        program, loader = self._program, self._loader
        apart = self._random.keys
        saved = {key: what for key, what in list_keys(self._metadata).items() if key not in apart}
        like = {name: value for name, value in together(program.state).items() if name not in self._random.names}
        like |= {name: part.template(_gradients_in(saved, name)) for name, part in program.gradients.items()}
        if loader is not None:
            like[LOADER_NAME] = loader.state_dict()
        self._skeleton = skeleton(like)
        flat = flatten_state_dict(like)[0]
        self.differences = compare_keys(saved, describe_program(flat))
        self.needed |= {one.kind for one in self.differences}
        together(lambda: refuse(self._path, self.differences, self._allowed))
        self._absent = {one.key for one in self.differences if one.kind == "only_in_program"}
        if loader is not None:
            like[LOADER_NAME] = self._of_checkpoint(like[LOADER_NAME])
        self._check_loader_takes()
        self._random.prepare()
        check_tied(self._path, flat, saved)
        self._state = with_text_keys(like)

    def _of_checkpoint(self, of_loader: dict[str, Any]) -> dict[str, Any]:
        """What of a loader's state is in the checkpoint: its own cursor must not be taken for a loaded one."""
        is_there = {key: f"{LOADER_NAME}.{key}" not in self._absent for key in of_loader}
        return {key: value for key, value in of_loader.items() if is_there[STATE_KEY] and is_there[key]}

    def _check_loader_takes(self) -> None:
        loader, cursor = self._loader, None if self._manifest is None else self._manifest.decode_cursor()
        if loader is None:
            return
        if f"{LOADER_NAME}.{STATE_KEY}" in self._absent:
            together(lambda: loader.check_state({}, self._of_loader))
        elif cursor is not None:
            together(lambda: loader.check_state(cursor, self._of_loader, self._declared))

    def read(self) -> None:
        """Read the files; models and whatever shares its memory with its state hold what was saved from here on.

        Raises:
            CheckpointError: They cannot be read; or what counts the program's steps does not agree.
            SealError: They are of two saves, or of processes that did not agree.
        """
        before = settings_of(self._program, self._state)
        read(self._path, self._state, self._absent)
        self.overridden = compare_settings(settings_of(self._program, self._state), before)
        if self._loader is not None:
            together(self._check_seal)
        self._require_counters()

    def _check_seal(self) -> None:
        """The seal is of one save, and of the one that the manifest is of."""
        of_loader = self._state[LOADER_NAME]
        if SEAL_KEY not in of_loader:
            return
        found = check_seal(of_loader[SEAL_KEY], of_loader[STATE_KEY].numpy().tobytes())
        nonce = None if self._manifest is None else int(self._manifest.nonce, 16)
        if nonce is not None and found not in (0, nonce):
            raise SealError(
                f"expected files of the save {nonce:016x}, as the manifest says, found some of {found:016x}: two saves "
                "are mixed in one directory. Do not go on from what was read; load an earlier checkpoint."
            )

    def _require_counters(self) -> None:
        parts = self._program.parts
        optimizers = [name for name, part in parts.items() if isinstance(part, OptimizerPart)]
        schedulers = [name for name, part in parts.items() if isinstance(part, StatefulPart)]
        cursor = None if self._loader is None else read_state(self._state[LOADER_NAME], fresh_start=True)
        faults = check_counters(self._state, optimizers, schedulers, cursor, absent=self._absent)
        if not faults:
            return
        self.needed.add(STEP_COUNTERS)
        if STEP_COUNTERS not in self._allowed:
            raise CheckpointError(
                f"{shown(self._path)}: expected optimizers, schedulers and the cursor to have counted the same "
                f"updates; found {faults}. The checkpoint was saved between an optimizer's step and commit(), or "
                "something was stepped, or reset, apart from the others. What was read is in the program: do not go on "
                f"from it. Load an earlier checkpoint; where it is meant, allow={{{STEP_COUNTERS!r}}}, which is "
                "recorded."
            )

    def restore(self) -> dict[str, Any]:
        """Let all parts take over what was read, compare it, and let the loader go on; the plain values, by name.

        Raises:
            CheckpointError: The program holds something else than what was saved.
            DisagreementError: Processes that hold the same part of a tensor hold different values.
        """
        program, state = self._program, self._state
        values = program.restore({name: state[name] for name in program.parts if name in state}, self._skeleton)
        gradients = {name: state[name] for name in program.gradients}
        now = tensors_of(together(program.state) | gradients)
        check_casts(self._path, {one.key: now[one.key] for one in self.differences if one.kind == "dtype"})
        if self._manifest is not None:
            check_digests(self._path, self._manifest, now)
        if self._loader is not None:
            # its seal was checked, and the rest of the checkpoint is: there is nothing to tell
            of_loader = {key: value for key, value in state[LOADER_NAME].items() if key != SEAL_KEY}
            self._loader.go_on_from(of_loader, self._of_loader, self._declared)
        together(lambda: self._restore_gradients(gradients))
        self.random_states = self._random.finish()
        return values

    def _restore_gradients(self, gradients: dict[str, Any]) -> None:
        for name, part in self._program.gradients.items():
            # where it was allowed to be absent, the run goes on at the update's start
            if f"{name}.{PHASE_KEY}" not in self._absent:
                part.load_state_dict(gradients[name])
        if self._loader is not None and self._manifest is not None and not self._loader.phase:
            self.discarded = self._manifest.phase


def _gradients_in(saved: Collection[str], name: str) -> set[str]:
    """Names of the parameters that the checkpoint has gradients of."""
    prefix = f"{name}.{GRADIENTS_KEY}."
    return {key.removeprefix(prefix) for key in saved if key.startswith(prefix)}

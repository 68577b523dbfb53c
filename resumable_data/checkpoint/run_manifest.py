"""The run manifest: what a training program was made of when it saved, as data that needs no torch to read.

It lies beside the commit mark in each checkpoint. What was not looked at, or could not be found out, is listed as
unknown, and is never taken for the same as anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from resumable_data.checkpoint.files.opening import read_small
from resumable_data.checkpoint.migration.records import Transition
from resumable_data.cursor import Cursor
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown
from resumable_data.ledger.records import Mesh

RUN_MANIFEST_NAME = "resumable_data.run.json"
RUN_MANIFEST_VERSION = 1
MAX_RUN_MANIFEST_BYTES = 1 << 28

Count = Annotated[int, msgspec.Meta(ge=0)]
Setting = bool | int | float | str | None
Invariant = Literal["samples", "tokens", "schedule"]
ScheduleUnit = Literal["updates", "samples", "tokens"]


class TensorInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A parameter or buffer as a whole: dtype without ``torch.``, shape, and whether it is trained, or saved."""

    dtype: str
    shape: tuple[Count, ...]
    is_kept: bool


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model.

    Attributes:
        kind: Its class.
        wrapper: What shards or replicates it: ``"fsdp2"``, ``"ddp"``, or ``""``.
        parameters: By name; `TensorInfo.is_kept` is whether it is trained.
        buffers: By name; `TensorInfo.is_kept` is whether a checkpoint holds it.
        buffer_digests: Digests of buffers that a checkpoint does not hold, by name, as the first process had them; not
            of those that are sharded, or on the meta device.
        tied: Names of parameters that are one and the same, in groups.
        batch_statistics: Modules whose result depends on what else is in the microbatch, by name, and their class.
    """

    kind: str
    wrapper: str
    parameters: dict[str, TensorInfo]
    buffers: dict[str, TensorInfo]
    tied: tuple[tuple[str, ...], ...] = ()
    batch_statistics: dict[str, str] = {}
    buffer_digests: dict[str, str] = {}

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters, tied ones once."""
        again = {name for group in self.tied for name in group[1:]}
        total = 0
        for name, info in self.parameters.items():
            size = 1
            for length in info.shape:
                size *= length
            total += 0 if name in again else size
        return total


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of parameters: their names, and its settings, as they are now."""

    parameters: tuple[str, ...]
    settings: dict[str, Setting | list[Setting]]


class OptimizerInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An optimizer: its class, its groups, and how often its parameters were stepped, the fewest and the most times."""

    kind: str
    groups: tuple[GroupInfo, ...]
    steps: tuple[Count, Count] | None = None


class SchedulerInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scheduler of learning rates: its class, where it is, what it gives, and its settings."""

    kind: str
    position: int | None
    learning_rates: tuple[float, ...]
    settings: dict[str, Setting]


class ScalerInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gradient scaler."""

    is_enabled: bool
    scale: float
    settings: dict[str, Setting]


class BatchInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The batch equation of the update at the cursor: ``global_batch <= microbatch * dp_size * accumulation_steps``.

    Attributes:
        global_batch: Samples, or tokens, of one update.
        unit: ``"samples"`` or ``"tokens"``.
        microbatch: The most rows that a rank holds at once.
        dp_size: Data-parallel ranks.
        accumulation_steps: Microbatches of each rank; None where updates differ, as those of a budget of tokens do.
        invariant: What was declared to stay the same when ranks change.
    """

    global_batch: Count
    unit: str
    microbatch: Count
    dp_size: Count
    accumulation_steps: Count | None
    invariant: Invariant


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Versions and modes that change what the same program computes."""

    python: str
    torch: str
    numpy: str
    package: str
    device: str
    commit: str
    modes: dict[str, Setting]


class RunManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a training program was made of.

    Attributes:
        version: `RUN_MANIFEST_VERSION`.
        unknown: What is not known: names of the fields below that nobody could fill.
        models: By their name in the state.
        optimizers: By their name in the state.
        schedulers: By their name in the state.
        scalers: By their name in the state.
        other_parts: Names of what else is in the state, and its class.
        precision: What parameters, gradients and activations are held in, by what says so.
        random_states: Whether they are in the checkpoint, and the declared policy; empty where they are not.
        cursor: The loader's as JSON, with its recipe; ``null`` without one.
        phase: Rows of the update at the cursor whose gradients were accumulated.
        world_size: All processes.
        mesh: All axes of the device mesh, and those that are data-parallel.
        batch: The batch equation; None without a loader.
        environment: Versions and modes; None where not known.
        schedule_unit: What the steps of the schedule count, as it was declared last; None where it never was.
        transitions: Loads at which something changed, from the run's beginning on.
    """

    version: int = RUN_MANIFEST_VERSION
    unknown: tuple[str, ...] = ()
    models: dict[str, ModelInfo] = {}
    optimizers: dict[str, OptimizerInfo] = {}
    schedulers: dict[str, SchedulerInfo] = {}
    scalers: dict[str, ScalerInfo] = {}
    other_parts: dict[str, str] = {}
    precision: dict[str, str] = {}
    random_states: str = ""
    cursor: msgspec.Raw = msgspec.Raw(b"null")
    phase: Count = 0
    world_size: Count = 0
    mesh: Mesh = Mesh()
    batch: BatchInfo | None = None
    environment: Environment | None = None
    schedule_unit: ScheduleUnit | None = None
    transitions: tuple[Transition, ...] = ()

    @property
    def dp_size(self) -> int:
        """Data-parallel ranks, apart from those of other axes."""
        size = 1
        for name, length in self.mesh.axes:
            size *= length if name in self.mesh.data_axes else 1
        return size

    def decode_cursor(self) -> Cursor | None:
        """The cursor.

        Raises:
            CorruptStateError: It is none of this version.
        """
        data = bytes(self.cursor)
        return None if data == b"null" else Cursor.from_json(data)

    def to_json(self) -> bytes:
        """Canonical JSON."""
        return msgspec.json.encode(self, order="deterministic")

    @classmethod
    def from_json(cls, data: bytes, where: str = "the run manifest") -> RunManifest:
        """What `to_json` gave.

        Raises:
            CheckpointError: It is none of this version.
        """
        try:
            version = msgspec.json.decode(data, type=_Versioned).version
            if version != RUN_MANIFEST_VERSION:
                raise _bad(where, f"version {version}")
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise _bad(where, f"something else ({error})") from None


class _Versioned(msgspec.Struct):
    version: int


def _bad(where: str, found: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: expected a run manifest of version {RUN_MANIFEST_VERSION}, found {shown(found)}. What the program "
        "was made of is not known. Read it with the version of resumable_data that wrote it."
    )


def read_run_manifest(path: Path) -> RunManifest | None:
    """The run manifest of the checkpoint at `path`; None where it has none.

    Raises:
        CheckpointError: It cannot be read, or is none of this version.
    """
    file = path / RUN_MANIFEST_NAME
    data = read_small(file, MAX_RUN_MANIFEST_BYTES)
    return None if data is None else RunManifest.from_json(data, shown(file))

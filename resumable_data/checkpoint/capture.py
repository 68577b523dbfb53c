"""The run manifest of a live program, in one call."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from resumable_data import __version__
from resumable_data.checkpoint.agreed_digests import merge_digests
from resumable_data.checkpoint.collective import rank_and_size
from resumable_data.checkpoint.live_digest import local_digests
from resumable_data.checkpoint.migration.carried import carried_by
from resumable_data.checkpoint.migration.changes import AS_PARAMETERS, is_model_axis
from resumable_data.checkpoint.random_states import RandomStates
from resumable_data.checkpoint.run_manifest import (
    BatchInfo,
    Environment,
    GroupInfo,
    Invariant,
    ModelInfo,
    OptimizerInfo,
    RunManifest,
    ScalerInfo,
    SchedulerInfo,
    ScheduleUnit,
    TensorInfo,
)
from resumable_data.checkpoint.settings import MOVING
from resumable_data.errors import UsageError
from resumable_data.ledger.records import Mesh
from resumable_data.plan import BatchPlan

if TYPE_CHECKING:
    from resumable_data.loader import ResumableLoader

_LOOKS_ACROSS = re.compile(r"router|moe|topk", re.IGNORECASE)


def capture_run(
    parts: Mapping[str, Any],
    loader: ResumableLoader | None = None,
    *,
    commit: str = "",
    invariant: Invariant = "samples",
    schedule_unit: ScheduleUnit | None = None,
) -> RunManifest:
    """What a training program is made of now. Not collective; nothing changes.

    Args:
        parts: As for `save_checkpoint`: models, optimizers, schedulers, scalers and others by name.
        loader: The loader.
        commit: What identifies the code that made the model, say a commit of its repository.
        invariant: What is to stay the same when ranks change: ``"samples"`` or ``"tokens"`` of an update, or the
            position of the ``"schedule"``.
        schedule_unit: What the scheduler's steps count: ``"updates"``, ``"samples"`` or ``"tokens"``. Where it is not
            declared, what the checkpoint says that `loader` was loaded from.

    Returns:
        The manifest. `RunManifest.unknown` lists what could not be found out: ``"autocast"`` is a mode of the loop, and
        not of the program, and is not seen where it is off during the call; ``"commit"`` and ``"schedule_unit"`` are
        unknown unless given. Loads at which something changed are known of the loader.
    """
    models = {name: part for name, part in parts.items() if isinstance(part, Module)}
    optimizers = {name: part for name, part in parts.items() if isinstance(part, Optimizer)}
    schedulers = {name: part for name, part in parts.items() if isinstance(part, LRScheduler)}
    scalers = {name: part for name, part in parts.items() if isinstance(part, torch.amp.GradScaler)}
    random = [part for part in parts.values() if isinstance(part, RandomStates)]
    named = models.keys() | optimizers.keys() | schedulers.keys() | scalers.keys()
    carried = carried_by(loader)
    unit = schedule_unit or carried.schedule_unit
    known = {"autocast": _autocast() != "", "commit": bool(commit), "schedule_unit": unit is not None}
    unknown = [name for name, is_known in known.items() if not is_known]
    size = rank_and_size()[1]
    return RunManifest(
        unknown=tuple(unknown + ([] if loader is not None else ["cursor", "batch"])),
        models={name: _model(model) for name, model in models.items()},
        optimizers={name: _optimizer(optimizer, models) for name, optimizer in optimizers.items()},
        schedulers={name: _scheduler(scheduler) for name, scheduler in schedulers.items()},
        scalers={name: _scaler(scaler) for name, scaler in scalers.items()},
        other_parts={name: _kind(part) for name, part in parts.items() if name not in named},
        precision=_precision(models),
        random_states=random[0].policy if random else "",
        cursor=msgspec.Raw(b"null" if loader is None else loader.cursor.to_json()),
        phase=0 if loader is None else loader.phase,
        world_size=size,
        mesh=_mesh(models, loader, size),
        batch=None if loader is None else _batch(loader, invariant),
        environment=_environment(commit),
        schedule_unit=unit,
        transitions=carried.transitions,
    )


def _mesh(models: Mapping[str, Module], loader: ResumableLoader | None, world_size: int) -> Mesh:
    """The loader's mesh, and what the models' shards tell of tensor-parallel axes and the like beside it."""
    of_models = {
        name: size
        for model in models.values()
        for parameter in model.parameters()
        if isinstance(parameter, DTensor)
        for name, size in zip(parameter.device_mesh.mesh_dim_names or (), parameter.device_mesh.shape, strict=False)
        if is_model_axis(name)
    }
    if loader is not None:
        axes, data_axes = loader.topology.axes, loader.topology.data_axes
    else:
        axes, data_axes = (("dp", max(world_size // math.prod(of_models.values()), 1)),), ("dp",)
    named = {name for name, _ in axes}
    return Mesh((*axes, *((name, size) for name, size in of_models.items() if name not in named)), data_axes)


def _kind(part: Any) -> str:
    """A class, by its full name; FSDP2 puts ``FSDP`` before that of the model it shards."""
    kind = type(part)
    if isinstance(part, FSDPModule) and len(kind.__mro__) > 2:
        kind = kind.__mro__[2]
    return f"{kind.__module__}.{kind.__qualname__}"


def _model(model: Module) -> ModelInfo:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    is_sharded = any(isinstance(part, FSDPModule) for part in model.modules())
    by_tensor: dict[int, list[str]] = {}
    parameters = {}
    for name, parameter in named_parameters(model):
        parameters[name] = _tensor(parameter, is_kept=parameter.requires_grad)
        by_tensor.setdefault(id(parameter), []).append(name)
    return ModelInfo(
        kind=_kind(inner),
        wrapper="fsdp2" if is_sharded else "ddp" if inner is not model else "",
        parameters=parameters,
        buffers=_buffers(inner),
        tied=tuple(tuple(names) for names in by_tensor.values() if len(names) > 1),
        batch_statistics={
            name: type(part).__name__
            for name, part in inner.named_modules()
            if isinstance(part, _BatchNorm) or _LOOKS_ACROSS.search(type(part).__name__)
        },
        buffer_digests=_buffer_digests(inner),
    )


def named_parameters(model: Module) -> list[tuple[str, Parameter]]:
    """Parameters by their names in a checkpoint, whatever wraps the model; tied ones under all their names."""
    return [
        (name, parameter)
        for wrapped, parameter in model.named_parameters(remove_duplicate=False)
        for name in _get_fqns(model, wrapped)
    ]


def _tensor(tensor: torch.Tensor, *, is_kept: bool) -> TensorInfo:
    return TensorInfo(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), is_kept)


def _buffers(model: Module) -> dict[str, TensorInfo]:
    found = {}
    for prefix, part in model.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            found[full] = _tensor(buffer, is_kept=name not in part._non_persistent_buffers_set)
    return found


def _buffer_digests(model: Module) -> dict[str, str]:
    """Digests of what no checkpoint holds, say a cache of rotary embeddings; each process has all of one."""
    found: dict[str, str] = {}
    for prefix, part in model.named_modules():
        for name, buffer in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set or isinstance(buffer, DTensor):
                continue
            with suppress(UsageError):  # of a kind that has no digest, or on no device
                full = f"{prefix}.{name}" if prefix else name
                found |= merge_digests([local_digests({full: buffer})])
    return found


def _optimizer(optimizer: Optimizer, models: Mapping[str, Module]) -> OptimizerInfo:
    names: dict[int, str] = {}
    for model in models.values():
        for name, parameter in reversed(named_parameters(model)):
            names[id(parameter)] = name
    groups = tuple(
        GroupInfo(
            parameters=tuple(names.get(id(one), "?") for one in group["params"]),
            settings={key: _setting(value) for key, value in group.items() if key != "params"},
        )
        for group in optimizer.param_groups
    )
    steps = [
        int(step.to_local() if isinstance(step, DTensor) else step)
        for state in optimizer.state.values()
        if (step := state.get("step")) is not None
    ]
    return OptimizerInfo(kind=_kind(optimizer), groups=groups, steps=(min(steps), max(steps)) if steps else None)


def _scheduler(scheduler: LRScheduler) -> SchedulerInfo:
    state = scheduler.state_dict()
    return SchedulerInfo(
        kind=_kind(scheduler),
        position=getattr(scheduler, "last_epoch", None),
        learning_rates=tuple(float(rate) for rate in scheduler.get_last_lr()),
        settings={key: _text(value) for key, value in state.items() if key not in MOVING},
    )


def _scaler(scaler: torch.amp.GradScaler) -> ScalerInfo:
    state = scaler.state_dict()
    return ScalerInfo(
        is_enabled=scaler.is_enabled(),
        scale=float(scaler.get_scale()),
        settings={key: _text(value) for key, value in state.items() if key not in ("scale", "_growth_tracker")},
    )


def _setting(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_text(item) for item in value]
    return _text(value)


def _text(value: Any) -> bool | int | float | str | None:
    return value if isinstance(value, (bool, int, float, str)) or value is None else repr(value)


def _precision(models: Mapping[str, Module]) -> dict[str, str]:
    found = {}
    for name, model in models.items():
        dtypes = sorted({str(one.dtype).removeprefix("torch.") for one in model.parameters()})
        found[f"{name}.parameters"] = ", ".join(dtypes)
        for part in model.modules():
            if isinstance(part, FSDPModule):
                policy = part._get_fsdp_state()._mp_policy  # torch has no public way to see it
                found[f"{name}.compute"] = _dtype(policy.param_dtype)
                found[f"{name}.reduction"] = _dtype(policy.reduce_dtype)
                break
    return found | ({"autocast": _autocast()} if _autocast() else {})


def _dtype(dtype: torch.dtype | None) -> str:
    return AS_PARAMETERS if dtype is None else str(dtype).removeprefix("torch.")


def _autocast() -> str:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return ", ".join(f"{kind} {_dtype(torch.get_autocast_dtype(kind))}" for kind in kinds)


def _batch(loader: ResumableLoader, invariant: Invariant) -> BatchInfo:
    recipe, layout = loader.cursor.recipe, loader.layout
    unit = recipe.batch_unit or "samples"
    plan = BatchPlan(
        global_batch=max(recipe.global_batch, 1), microbatch=layout.microbatch, num_replicas=layout.num_replicas
    )
    return BatchInfo(
        global_batch=recipe.global_batch,
        unit=unit,
        microbatch=layout.microbatch,
        dp_size=layout.num_replicas,
        accumulation_steps=plan.accumulation_steps if unit == "samples" else None,
        invariant=invariant,
    )


def _environment(commit: str) -> Environment:
    cuda: Any = torch.backends.cuda
    cudnn = torch.backends.cudnn
    has_device = torch.cuda.is_available() and bool(torch.cuda.device_count())
    return Environment(
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        package=__version__,
        device=torch.cuda.get_device_name() if has_device else "cpu",
        commit=commit,
        modes={
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "cudnn.enabled": cudnn.enabled,
            "cudnn.benchmark": cudnn.benchmark,
            "cudnn.deterministic": cudnn.deterministic,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "attention.flash": cuda.flash_sdp_enabled(),
            "attention.memory_efficient": cuda.mem_efficient_sdp_enabled(),
            "attention.math": cuda.math_sdp_enabled(),
            "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        },
    )

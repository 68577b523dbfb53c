"""What a trace's first line says of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from resumable_data import __version__
from resumable_data.validation.trace import TraceHeader

if TYPE_CHECKING:
    from torch import nn

    from resumable_data.loader import ResumableLoader


def header_of(
    loader: ResumableLoader, model: nn.Module, dtype: str | None, precision: str, *, has_update_norm: bool
) -> TraceHeader:
    """The first line of a trace of this job.

    Args:
        loader: Its loader, that has delivered something.
        model: Its model.
        dtype: What it computes in; see `computing_dtype` when None.
        precision: More about that, for people.
        has_update_norm: Whether the norm of each update is recorded.
    """
    here = loader.topology
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return TraceHeader(
        run_id=loader.run_id,
        num_replicas=here.num_replicas,
        axes=here.axes,
        data_axes=here.data_axes,
        num_devices=1 if here.group is None else dist.get_world_size(here.group),
        global_batch=loader.cursor.recipe.global_batch,
        dtype=computing_dtype(model, device.type) if dtype is None else dtype.removeprefix("torch."),
        precision=precision,
        has_update_norm=has_update_norm,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        package_version=__version__,
        torch_version=str(torch.__version__),
    )


_MATMULS = {"high": "tf32", "medium": "bfloat16"}
"""What an accelerator's float32 products are made of, by torch's matmul precision."""


def computing_dtype(model: nn.Module, device_type: str) -> str:
    """The dtype of a model's parameters that rounds most, or what its device multiplies float32 in."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
    if coarsest == torch.float32 and device_type == "cuda":
        return _MATMULS.get(torch.get_float32_matmul_precision(), "float32")
    return str(coarsest).removeprefix("torch.")

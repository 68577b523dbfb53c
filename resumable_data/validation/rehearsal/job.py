"""What a training job is made of, so that its own code can be rehearsed, and what it is told when it is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from resumable_data.checkpoint.collective import rank_and_size
from resumable_data.checkpoint.program import model_of
from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from resumable_data.checkpoint.probe import Probe
    from resumable_data.loader import Microbatch, ResumableLoader
    from resumable_data.loader.updates import Update
    from resumable_data.validation.update_recorder import UpdateRecorder

OptimizerStep = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Context:
    """What ``build(context)`` is told. A training script makes one too, with its own folder.

    Attributes:
        folder: Where the job may write: of a rehearsal, a directory that is deleted afterwards.
        checkpoint: The checkpoint that will be loaded; None where there is none.
        is_synthetic: Whether a small job is wanted: fewer layers, less width, the same mesh.
        arguments: What followed ``--`` on the command line.
    """

    folder: Path
    checkpoint: Path | None = None
    is_synthetic: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def ledger(self) -> Path:
        """Where the loader's ledger belongs."""
        return self.folder / "ledger"

    @property
    def rank(self) -> int:
        """This process."""
        return rank_and_size()[0]

    @property
    def world_size(self) -> int:
        """How many there are."""
        return rank_and_size()[1]

    @property
    def device(self) -> torch.device:
        """This process's device."""
        if torch.cuda.is_available():
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device("cpu")


@dataclass(kw_only=True)
class Job:
    """A training job: what it is made of, and its own code for a microbatch and for a step.

    Attributes:
        state: As for `save_checkpoint`: the model, its optimizer, schedulers, scaler and others by name. Models that
            are not trained may be beside it, an average of its weights, say, or a teacher.
        loader: The loader.
        accumulate: Takes a microbatch: forward and backward. Returns what backward was called on, without a scaler's
            factor; None on stages of a pipeline that compute no loss.
        step: Takes what goes around ``optimizer.step()``: clips, steps, moves the scheduler, clears gradients. Returns
            False where the scaler skipped the step.
        probe: Fixed examples, see `Probe`; the ones that `save_checkpoint` is given.
        evaluate: Evaluates, and returns a number.
        log: Logs.
        evaluate_every: After how many updates `evaluate` is called.
        log_every: After how many updates `log` is called.
        prepare: Takes each update before its microbatches, say to call `Update.set_targets`.
        load: Loads a checkpoint in the job's own way, a migration of its own included; `load_checkpoint` where None.
        dtype: As for `TraceRecorder`.
        traced_optimizer: The name of one of several optimizers of the model; a trace holds its learning rates and step
            counters, and the gradients and the change of all of the model. Not needed where there is one.
    """

    state: dict[str, Any]
    loader: ResumableLoader
    accumulate: Callable[[Microbatch], torch.Tensor | None]
    step: Callable[[OptimizerStep], bool | None]
    probe: Probe | None = None
    evaluate: Callable[[], float] | None = None
    log: Callable[[], object] | None = None
    evaluate_every: int | None = None
    log_every: int | None = None
    prepare: Callable[[Update], object] | None = None
    load: Callable[[Path], object] | None = None
    dtype: str | None = None
    traced_optimizer: str | None = None
    evaluations: list[float] = field(default_factory=list)
    """What `evaluate` returned at each boundary."""

    def train(self, recorder: UpdateRecorder | None = None) -> Iterator[None]:
        """The training loop: yields after each update that was committed, and ends with the run.

        Args:
            recorder: Records a trace, or watches: a `TraceRecorder`, or what `watch` returned.
        """
        optimizer_step: OptimizerStep = nullcontext if recorder is None else recorder.optimizer_step
        for microbatch in self.microbatches():
            loss = self.accumulate(microbatch)
            if recorder is not None:
                recorder.add(microbatch, loss)
            if microbatch.is_last:
                since = self.loader.cursor
                is_applied = self.step(optimizer_step) is not False
                self.loader.commit(applied=is_applied)
                now = self.loader.cursor
                if self.log and self.log_every and now.crossed(since, every_updates=self.log_every):
                    self.log()
                if self.evaluate and self.evaluate_every and now.crossed(since, every_updates=self.evaluate_every):
                    self.evaluations.append(self.evaluate())
                yield

    def microbatches(self) -> Iterator[Microbatch]:
        """Microbatches from the cursor on, prepared an update at a time where that is asked for."""
        if self.prepare is None:
            yield from self.loader
            return
        for update in self.loader.updates():
            self.prepare(update)
            yield from update

    @property
    def models(self) -> list[Module]:
        """The models of the state."""
        return [part for part in self.state.values() if isinstance(part, Module)]

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizers of the state, by name."""
        return {name: part for name, part in self.state.items() if isinstance(part, Optimizer)}

    @cached_property
    def model(self) -> Module:
        """The model that is trained: that of all optimizers. Found once: under FSDP2, a forward hides their shards.

        Raises:
            UsageError: An optimizer's parameters are those of no model in the state, or several models are trained.
        """
        found = [model_of(name, part, self.models) for name, part in self.optimizers.items()]
        if not found or any(one is not found[0] for one in found):
            raise UsageError(
                f"expected a job that trains one model, found optimizers {[*self.optimizers] or 'none'} of "
                f"{len({*map(id, found)})} models in its state. A trace is of one model: what the others do in the "
                "window would not be compared. Nothing was rehearsed; put models that are trained together into one "
                "module, with optimizers for parts of it, or hold the state alone against a checkpoint with "
                "check_state()."
            )
        return found[0]

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose settings a trace holds.

        Raises:
            UsageError: There are several, and none of them is named; or none is there of that name.
        """
        name = self.traced_optimizer or next(iter(self.optimizers), None)
        if name not in self.optimizers or (self.traced_optimizer is None and len(self.optimizers) > 1):
            raise UsageError(
                f"expected one optimizer in the job's state, or Job.traced_optimizer= to name one of them; found "
                f"{[*self.optimizers] or 'none'}, and {self.traced_optimizer!r} named. A trace holds the learning "
                "rates and step counters of one. Nothing was rehearsed; name the one of most of the parameters."
            )
        return self.optimizers[name]

    @property
    def scheduler(self) -> LRScheduler | None:
        """The scheduler of that optimizer, the first where there are several; None without one."""
        own = [part for part in self.schedulers.values() if part.optimizer is self.optimizer]
        return next(iter([*own, *self.schedulers.values()]), None)

    @property
    def schedulers(self) -> dict[str, LRScheduler]:
        """Schedulers of learning rates, by name."""
        return {name: part for name, part in self.state.items() if isinstance(part, LRScheduler)}

    @property
    def scaler(self) -> Any:
        """The gradient scaler; None without one."""
        return next((part for part in self.state.values() if isinstance(part, torch.amp.GradScaler)), None)

    def averaged_over(self) -> int | None:
        """How many ranks the model averages gradients over; None where it does not say."""
        model = self.model
        if isinstance(model, DistributedDataParallel):
            return dist.get_world_size(model.process_group)
        for part in model.modules():
            group = part._get_fsdp_state()._fsdp_param_group if isinstance(part, FSDPModule) else None
            if group is not None:  # torch has no public way to see it
                info = group.mesh_info
                return int(getattr(info, "shard_mesh_size", 1) * getattr(info, "replicate_mesh_size", 1))
        return None

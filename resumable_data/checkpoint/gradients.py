"""Gradients of an update under way, with the part of the update that they are of: one object of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.nn import Module

from resumable_data.checkpoint.collective import gather_bytes, together
from resumable_data.checkpoint.reduction import Reduction, require_synchronised
from resumable_data.cursor import PHASE_NUM_BYTES, decode_phase, encode_phase
from resumable_data.errors import CheckpointError, CorruptStateError, StateError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from resumable_data.cursor import Phase
    from resumable_data.loader import ResumableLoader

PHASE_KEY = "phase"
GRADIENTS_KEY = "gradients"


class InFlightGradients:
    """What a model accumulated of an update that is not complete, so that a run can go on in the middle of it.

    Give it to `save_checkpoint` and `load_checkpoint` as a part of the state, under any name. A checkpoint saved
    between two microbatches of an update then holds the phase, the update's samples whose gradients are accumulated,
    and the gradients, reduced over all ranks: ``1 / B`` times the sum over these samples, B that of the whole update.
    Neither depends on the number of ranks. After a load, on any number of them, the rest of the update is read.
    Without it, a run goes on at the update's start.

    Args:
        model: The model whose gradients are saved, wrapped by FSDP2, DDP or nothing. FSDP2 must reduce gradients at
            each microbatch; with DDP they may be local (``no_sync``).
        loader: The loader whose microbatches are trained on.
        group: The processes over which gradients of parameters that neither FSDP2 nor DDP handles are reduced by
            yourself; found from the loader where that is clear.

    Example:
        >>> import torch
        >>> from resumable_data import InFlightGradients, ResumableLoader
        >>> model = torch.nn.Linear(2, 1)
        >>> loader = ResumableLoader(torch.eye(2).repeat(8, 1), global_batch=8, microbatch=2, rank=0, num_replicas=1)
        >>> microbatch = next(iter(loader))
        >>> (model(microbatch.data).sum() * microbatch.loss_scale).backward()
        >>> state = InFlightGradients(model, loader).state_dict()
        >>> sorted(state["gradients"])
        ['bias', 'weight']
        >>> again = ResumableLoader(torch.eye(2).repeat(8, 1), global_batch=8, microbatch=3, rank=0, num_replicas=1)
        >>> again.load_state_dict(loader.state_dict())
        >>> InFlightGradients(model, again).load_state_dict(state)
        >>> [microbatch.ids.size for _, microbatch in zip(range(2), again)]
        [3, 3]
    """

    def __init__(self, model: Module, loader: ResumableLoader, *, group: ProcessGroup | None = None) -> None:
        self.model = model
        self.loader = loader
        self._reduction = Reduction(model, loader, group)

    def state_dict(self) -> dict[str, Any]:
        """The phase and, where it is not empty, the gradients, as copies. Collective.

        Call it after the backward of the same microbatch on all ranks.

        Returns:
            ``"phase"``, a uint8 tensor of fixed size; ``"gradients"``, by names of parameters, of their placement.

        Raises:
            DisagreementError: Ranks were handed different microbatches.
            CommitError: The update is complete: step and commit first.
            StateError: The gradients are not those of the phase, or not where they can be saved.
        """
        phase = self.loader.gather_phase()
        state: dict[str, Any] = {PHASE_KEY: torch.frombuffer(bytearray(encode_phase(phase)), dtype=torch.uint8)}
        if phase.samples:
            together(lambda: require_synchronised(self.model))
            state[GRADIENTS_KEY] = self._gather(phase)
        return state

    def _gather(self, phase: Phase) -> dict[str, torch.Tensor]:
        """Copies of all gradients, reduced. A parameter that only some ranks have a gradient of has one. Collective."""
        parameters = self._parameters()
        own = [name for name, parameter in parameters.items() if parameter.grad is not None]
        everyones = {name for names in gather_bytes(msgspec.json.encode(own)) for name in msgspec.json.decode(names)}
        if not everyones:
            raise StateError(
                f"expected gradients of the {phase.samples} samples of update {phase.update} that were delivered; "
                "found none on any process. A run that goes on after these samples would not have learned from them. "
                "Nothing was saved; save after the microbatch's backward, and commit() after the optimizer's step."
            )
        return {name: self._reduction.reduce(parameters[name]) for name in parameters if name in everyones}

    def template(self, names: Collection[str]) -> dict[str, Any]:
        """A state to load into: zeros, for these names of parameters; other names are left out. Not collective."""
        state: dict[str, Any] = {PHASE_KEY: torch.zeros(PHASE_NUM_BYTES, dtype=torch.uint8)}
        zeros = {
            name: torch.zeros_like(parameter, requires_grad=False)
            for name, parameter in self._parameters().items()
            if name in names
        }
        return state | ({GRADIENTS_KEY: zeros} if zeros else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put gradients and phase back, after the loader's `load_state_dict` and the optimizer's. Not collective.

        Args:
            state: What `state_dict` gave, or DCP read into `template`.

        Raises:
            CorruptStateError: The phase is damaged.
            StateError: It is of another update than the loader's, or gradients are missing.
            OtherRunError: It is of another run.
            CheckpointError: There is a gradient of a parameter that the model does not have.
        """
        phase = read_phase(state)
        gradients = state.get(GRADIENTS_KEY, {})
        parameters = self._check(phase, gradients)
        self.loader.start_inside(phase)
        for name, parameter in parameters.items():
            parameter.grad = self._reduction.restored(gradients[name], parameter) if name in gradients else None

    def _check(self, phase: Phase, gradients: Mapping[str, Any]) -> dict[str, torch.nn.Parameter]:
        """The model's parameters, when all gradients are theirs."""
        parameters = self._parameters()
        if bool(phase.samples) != bool(gradients):
            raise StateError(
                f"expected a phase of update {phase.update} together with its gradients, found {phase.samples} samples "
                f"and {len(gradients)} gradients. {_INCOMPLETE}"
            )
        for name, gradient in gradients.items():
            parameter = parameters.get(name)
            expected = "no such parameter" if parameter is None else f"{parameter.dtype} {list(parameter.shape)}"
            found = f"{gradient.dtype} {list(gradient.shape)}"
            if expected != found:
                raise CheckpointError(
                    f"gradient of {name!r}: expected {expected}, found {found}. The rest of the update would be added "
                    "to something else. Nothing was changed; load with the model that was saved."
                )
        return parameters

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters by the names that DCP gives them, whatever wraps the model."""
        return {
            name: parameter
            for wrapped, parameter in self.model.named_parameters()
            if parameter.requires_grad
            for name in _get_fqns(self.model, wrapped)
        }


_INCOMPLETE = (
    "The run would go on after samples that it has not learned from, or learn from them twice. Nothing was changed. "
    "Read both with load_checkpoint(), or with DCP into `template(names)`, with the names of the gradients in the "
    "checkpoint; or leave both out: the run then goes on at the update's start."
)


def read_phase(state: Mapping[str, Any]) -> Phase:
    """The phase in what `InFlightGradients.state_dict` gave.

    Raises:
        CorruptStateError: It has none, or it is damaged.
    """
    tensor = state.get(PHASE_KEY)
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise CorruptStateError(
            f"expected {PHASE_KEY!r}, a uint8 tensor of one dimension, in the state of in-flight gradients; found "
            f"{tensor!r:.200}. Nothing was changed; load what InFlightGradients.state_dict() gave."
        )
    return decode_phase(tensor.cpu().numpy().tobytes())

"""What a training program holds, as the state that DCP saves: and back into the program, in the order that is right.

A part of the program is a model, an optimizer, something with ``state_dict`` and ``load_state_dict`` (a scheduler, a
gradient scaler), or a plain value. Models and optimizers go through torch's state-dict functions, so that the state has
the names of parameters and does not depend on how they are sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module
from torch.optim import Optimizer

from resumable_data.checkpoint.gradients import InFlightGradients
from resumable_data.checkpoint.random_states import RandomStates
from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from resumable_data.loader import ResumableLoader

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Part(Protocol):
    """One part of a program."""

    def state(self) -> Any:
        """Its state as it is now; what it holds may be written to."""
        ...

    def restore(self, state: Any) -> None:
        """Take the state over."""
        ...


class ModelPart:
    """A model, wrapped by FSDP, DDP or nothing."""

    def __init__(self, model: Module) -> None:
        self.model = model

    def state(self) -> dict[str, Any]:
        """Its parameters and buffers, by name; they share the model's memory."""
        return get_model_state_dict(self.model)

    def restore(self, state: dict[str, Any]) -> None:
        """Strictly: with no name missing and none too many."""
        set_model_state_dict(self.model, state)


class OptimizerPart:
    """An optimizer over a model's parameters.

    torch makes the state of one that was never stepped by stepping it, with gradients of zero. That counts as a step,
    and must not be one: neither in the checkpoint nor in the program.
    """

    def __init__(self, model: Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self._is_new = not optimizer.state

    @property
    def is_new(self) -> bool:
        """Whether it was never stepped."""
        return self._is_new

    def state(self) -> dict[str, Any]:
        """Its state and parameter groups, by names of parameters."""
        with _without_gradients(self.model):
            state: dict[str, Any] = dict(get_optimizer_state_dict(self.model, self.optimizer))
        if self._is_new:
            for of_parameter in state["state"].values():
                _clear_step(of_parameter)
        return state

    def forget(self) -> None:
        """Take away what `state` made, where the optimizer was never stepped: its first step makes it."""
        if self._is_new:
            self.optimizer.state.clear()

    def restore(self, state: dict[str, Any]) -> None:
        """By names of parameters."""
        with _without_gradients(self.model):
            set_optimizer_state_dict(self.model, self.optimizer, state)
        steps = [of_parameter["step"] for of_parameter in self.optimizer.state.values() if "step" in of_parameter]
        self._is_new = bool(steps) and not any(float(step) for step in steps)  # saved before its first step


def _clear_step(of_parameter: dict[str, Any]) -> None:
    step = of_parameter.get("step")
    if isinstance(step, torch.Tensor):
        step.zero_()
    elif step is not None:
        of_parameter["step"] = 0


class StatefulPart:
    """Something that gives and takes its own state."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def state(self) -> Any:
        """What it gives."""
        return self.part.state_dict()

    def restore(self, state: Any) -> None:
        """What it takes."""
        self.part.load_state_dict(state)


class RandomPart:
    """The states of random generators, each process's its own. `load_checkpoint` gives them back, last of all."""

    def __init__(self, part: RandomStates) -> None:
        self.part = part

    def state(self) -> dict[str, Any]:
        """This process's states."""
        return dict(self.part.state_dict())

    def restore(self, state: Any) -> None:
        """Nothing yet: what is restored after it may draw random numbers."""


class ValuePart:
    """A tensor, a number, a text, or these in dicts and lists. Tensors are loaded in place."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state(self) -> Any:
        """Its tensors and values in new dicts and lists, which DCP may write to."""
        return _copied(self.value)

    def restore(self, state: Any) -> None:
        """Remember what was loaded."""
        self.value = state


class Program:
    """A training program's parts by name.

    Args:
        parts: Names to models, optimizers, objects with ``state_dict`` and ``load_state_dict``, or plain values.
        loader: The loader that is saved or loaded with them.

    Raises:
        UsageError: An optimizer's parameters are those of no model, or of several; there are several `RandomStates` or
            `InFlightGradients`, or these are of another loader.
    """

    def __init__(self, parts: Mapping[str, Any], loader: ResumableLoader | None = None) -> None:
        models = [part for part in parts.values() if isinstance(part, Module)]
        for model in models:
            reshard(model)
        self.gradients = {name: part for name, part in parts.items() if isinstance(part, InFlightGradients)}
        _check_gradients(self.gradients, loader)
        others = {name: part for name, part in parts.items() if name not in self.gradients}
        self.parts: dict[str, Part] = {name: _part(name, part, models) for name, part in others.items()}
        if len(self.random) > 1:
            raise UsageError(
                f"expected one RandomStates in the state, found {', '.join(map(repr, self.random))}: they are of the "
                "same generators, and the last one restored would win. Leave one."
            )

    @property
    def random(self) -> dict[str, RandomStates]:
        """The random states by name; what they hold is each process's own."""
        return {name: part.part for name, part in self.parts.items() if isinstance(part, RandomPart)}

    def state(self) -> dict[str, Any]:
        """The state of all parts but the gradients under way, which is collective.

        Raises:
            UsageError: It holds what could not be read back.
        """
        state = {name: part.state() for name, part in self.parts.items()}
        for name, value in state.items():
            _check_values(value, name)
        return state

    def forget(self) -> None:
        """Let no part keep what `state` made only to describe it."""
        for part in self.parts.values():
            if isinstance(part, OptimizerPart):
                part.forget()

    def restore(self, state: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
        """Take over a state that DCP loaded: models, then optimizers, then all others.

        Args:
            state: What was loaded.
            like: The `skeleton` of what `state` gave before: it has the keys as they were, which DCP makes text.

        Returns:
            The plain values, by name.
        """
        values = {}
        for kind in (ModelPart, OptimizerPart, StatefulPart, ValuePart):
            for name, part in self.parts.items():
                if isinstance(part, kind) and name in state:
                    part.restore(_with_keys_of(like[name], state[name]))
                    if isinstance(part, ValuePart):
                        values[name] = part.value
        return values


def _check_gradients(gradients: Mapping[str, InFlightGradients], loader: ResumableLoader | None) -> None:
    if len(gradients) > 1:
        raise UsageError(
            f"expected one InFlightGradients in the state, found {len(gradients)}: {sorted(gradients)}. An update has "
            "one phase. Nothing was saved or loaded; for several models give it a ModuleList of them."
        )
    for name, part in gradients.items():
        if part.loader is not loader:
            raise UsageError(
                f"expected loader= to be the one that the InFlightGradients {name!r} was made with; found "
                f"{'none' if loader is None else 'another'}. Its phase is a part of that loader's update, and without "
                "its cursor it means nothing. Nothing was saved or loaded; give that loader as loader=."
            )


def _part(name: str, part: Any, models: list[Module]) -> Part:
    if isinstance(part, Module):
        return ModelPart(part)
    if isinstance(part, Optimizer):
        return OptimizerPart(model_of(name, part, models), part)
    if isinstance(part, RandomStates):
        return RandomPart(part)
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        return StatefulPart(part)
    return ValuePart(part)


def reshard(model: Module) -> None:
    """Let a model under FSDP2 have its shards for parameters, as the optimizer has. To be called on all processes.

    After a forward without a backward, an evaluation, say, the root's are gathered.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def model_of(name: str, optimizer: Optimizer, models: list[Module]) -> Module:
    """The model whose parameters an optimizer has.

    Raises:
        UsageError: There is none among `models`, or several.
    """
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    holds = [model for model in models if own <= {id(parameter) for parameter in model.parameters()}]
    if len(holds) != 1:
        raise UsageError(
            f"expected one model in the state that has the parameters of the optimizer {name!r}, found {len(holds)}. "
            "Their names would not be known, and nothing was saved or loaded; put the model beside its optimizer, as "
            '{"model": model, "optimizer": optimizer}. An optimizer must be made after fully_shard().'
        )
    return holds[0]


@contextmanager
def _without_gradients(model: Module) -> Iterator[None]:
    """Hide gradients: with one, torch takes a fresh optimizer's state for complete and would lose all moments."""
    held = [(parameter, parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    for parameter, _ in held:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


def _check_values(value: Any, where: str) -> None:
    """Refuse what DCP would pickle and no reader could trust."""
    if isinstance(value, Mapping):
        names = [str(key) for key in value]
        if len(set(names)) < len(names):
            raise UsageError(
                f"state {where!r}: expected keys that differ as text, found {names}; DCP saves them as text"
            )
        for key, item in value.items():
            _check_values(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check_values(item, f"{where}.{number}")
    elif not isinstance(value, (*_PLAIN, torch.Tensor)):
        raise UsageError(
            f"state {where!r}: expected tensors, numbers, texts, and these in dicts and lists; found "
            f"{type(value).__name__}, which could only be read back by running pickle. Nothing was saved; leave it "
            "out, or save what it is made of."
        )


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [*map(_copied, value)] if isinstance(value, (list, tuple)) else value


def skeleton(value: Any) -> Any:
    """The dicts and lists of a state, with None for all else: what stays when DCP writes into the state."""
    if isinstance(value, Mapping):
        return {key: skeleton(item) for key, item in value.items()}
    return [*map(skeleton, value)] if isinstance(value, (list, tuple)) else None


def _with_keys_of(like: Any, loaded: Any) -> Any:
    """What was loaded, with the keys of dicts as they were: DCP makes them text."""
    if isinstance(like, Mapping) and isinstance(loaded, Mapping):
        restored = {}
        for key, item in like.items():
            found = loaded[str(key)] if not isinstance(key, str) and str(key) in loaded else loaded.get(key)
            restored[key] = _with_keys_of(item, found)
        extra = {key: item for key, item in loaded.items() if key not in {*like, *map(str, like)}}
        return {**restored, **extra}
    if isinstance(like, list) and isinstance(loaded, list) and len(like) == len(loaded):
        return [*map(_with_keys_of, like, loaded)]
    return loaded

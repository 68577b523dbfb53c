"""The states of the global random generators, saved under a key of each process, and given back to the same ones."""

from __future__ import annotations

import random
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from resumable_data.checkpoint.collective import rank_and_size
from resumable_data.checkpoint.random_layout import (
    Place,
    decode_numpy,
    decode_python,
    decode_states,
    encode_numpy,
    encode_python,
    encode_states,
)
from resumable_data.errors import CorruptStateError, StateError, UsageError
from resumable_data.rng import update_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable_data.loader import ResumableLoader

ON_CHANGE = ("refuse", "reseed")


class RandomStates:
    """The states of this process's global random generators, as a part of the state that a checkpoint holds.

    These are torch's for the CPU and, once CUDA is in use, for the current device, ``numpy.random``'s and ``random``'s.
    `load_checkpoint` gives them back last of all, where each process is the one that saved: of as many, with the same
    data-parallel rank. On other ranks there is no right state for anyone, and it does what was declared here.

    Args:
        loader: The loader of the run: its data-parallel rank, its seed, and the update at its cursor.
        on_change: On other ranks, ``"refuse"`` to load, or ``"reseed"`` all generators by seed, update and
            data-parallel rank, see `reseed`; which is recorded.

    Raises:
        UsageError: `on_change` is neither.

    >>> import resumable_data as rd
    >>> loader = rd.ResumableLoader(torch.arange(6), global_batch=2, microbatch=2)
    >>> states = rd.RandomStates(loader)
    >>> states.reseed(7)
    >>> first = torch.rand(2)
    >>> states.reseed(7)
    >>> torch.equal(torch.rand(2), first)
    True
    """

    def __init__(self, loader: ResumableLoader, *, on_change: str = "refuse") -> None:
        if on_change not in ON_CHANGE:
            raise UsageError(
                f"on_change must be one of {ON_CHANGE}, got {on_change!r}: what becomes of random states on other "
                "ranks must be declared"
            )
        self.on_change = on_change
        self.change = ""
        """What `load_checkpoint` did where the ranks had changed; empty where they had not."""
        self._loader = loader

    @property
    def policy(self) -> str:
        """What a manifest says of random states: what is declared, and what was done at the last load."""
        return f"{self.on_change}; {self.change}" if self.change else self.on_change

    @property
    def place(self) -> Place:
        """This process among the others."""
        process, world_size = rank_and_size()
        topology = self._loader.topology
        return Place(world_size, process, topology.num_replicas, topology.rank)

    @property
    def key(self) -> str:
        """The name of this process's states."""
        return f"rank{self.place.process}"

    def reseed(self, update: int | None = None) -> None:
        """Seed all generators for one update, by the loader's seed and its data-parallel rank.

        Called at the start of each update, what is drawn in it is the same after a restart on the same ranks, whatever
        was drawn before. torch's CPU and CUDA generators get ``update_seed(seed, update, rank)``, the others unrelated
        seeds. Peers of a data-parallel rank, say tensor-parallel ones, get the same numbers.

        Args:
            update: Index of the update, as in ``microbatch.update``; the one at the loader's cursor when None.
        """
        update = self._loader.cursor.updates if update is None else update
        seed, rank = self._loader.seed, self.place.dp_rank
        torch.manual_seed(update_seed(seed, update, rank))
        of_numpy = update_seed(seed, update, rank, "numpy")
        np.random.seed([of_numpy & 0xFFFFFFFF, of_numpy >> 32])
        random.seed(update_seed(seed, update, rank, "random"))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The states as one uint8 tensor of fixed size, under the name of this process.

        Raises:
            StateError: numpy's global generator was replaced by another kind.
        """
        encoded = encode_states(self.place, _get_states())
        return {self.key: torch.frombuffer(bytearray(encoded), dtype=torch.uint8)}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Give the states back, as ``dcp.load`` does it; `load_checkpoint` also asks the other processes.

        Raises:
            CorruptStateError: The states are damaged.
            StateError: They are of another process.
        """
        self.change = ""
        saved, states = decode_states(state[self.key].numpy().tobytes())
        change = self.describe_change(saved, states)
        if not change:
            _set_states(states)
        elif self.on_change == "refuse":
            raise refused(change)
        else:
            self.reseed_after(change)

    def describe_change(self, saved: Place, states: Mapping[str, bytes]) -> str:
        """How this process differs from the one that saved some states; empty where it does not."""
        now = self.place
        if (saved.world_size, saved.num_replicas) != (now.world_size, now.num_replicas):
            return f"saved by {_ranks(saved)}, now there are {_ranks(now)}"
        if saved != now:
            return (
                f"saved by process {saved.process} as data-parallel rank {saved.dp_rank} of {saved.num_replicas}, "
                f"process {now.process} is rank {now.dp_rank} now"
            )
        if "cuda" in states and not torch.cuda.is_available():
            return "saved with a state for CUDA, now there is no CUDA device"
        if "cuda" not in states and _uses_cuda():
            return "saved without a state for CUDA, now a CUDA device is in use"
        return ""

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Give states back as they are."""
        self.change = ""
        _set_states(states)

    def reseed_after(self, change: str) -> None:
        """Seed all generators for the update at the cursor, and take down why."""
        self.change = f"seeded anew at update {self._loader.cursor.updates}: {change}"
        self.reseed()


def refused(change: str) -> StateError:
    """The error where states are of other ranks and that is to be one."""
    return StateError(
        f"random states were {change}. Each belongs to one process, and none of them is right for another: streams "
        "would be repeated by some ranks and lost by others. Nothing was loaded; load on the ranks that saved, or "
        'declare RandomStates(loader, on_change="reseed"), which seeds all generators by seed, update and '
        "data-parallel rank, and is recorded."
    )


def _ranks(place: Place) -> str:
    return f"{place.world_size} processes of {place.num_replicas} data-parallel ranks"


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # as it is in torch


def _get_states() -> dict[str, bytes]:
    states = {"torch": torch.get_rng_state().numpy().tobytes()}
    if _uses_cuda():  # asking for a state would start CUDA
        states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    of_numpy: Any = np.random.get_state(legacy=False)
    return {**states, "numpy": encode_numpy(of_numpy), "random": encode_python(random.getstate())}


def _set_states(states: Mapping[str, bytes]) -> None:
    try:
        torch.set_rng_state(_tensor(states["torch"]))
        if "cuda" in states:
            torch.cuda.set_rng_state(_tensor(states["cuda"]))
        np.random.set_state(decode_numpy(states["numpy"]))
        random.setstate(decode_python(states["random"]))
    except (KeyError, ValueError, TypeError, RuntimeError, struct.error) as error:
        raise CorruptStateError(
            f"random states were saved whole, and a generator does not take its own ({type(error).__name__}: {error}): "
            "another version of torch, numpy or Python saved them. Some generators have theirs by now; go on with the "
            'versions that saved, or leave RandomStates out, with allow={"only_in_checkpoint"}.'
        ) from error


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Whatever is drawn inside the block, this process's generators go on afterwards as if it had not been."""
    states = _get_states()
    try:
        yield
    finally:
        _set_states(states)


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)

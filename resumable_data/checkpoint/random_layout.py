"""The random states of one process as bytes of a fixed number.

::

    byte 0    8 bytes   magic  b"RDRANDOM"
         8    4 bytes   format version, little-endian as all numbers here
        12    4 bytes   length of the body
        16    8 bytes   xxh3_64 of the body
        24    16 bytes  body: processes, this process, data-parallel ranks, data-parallel rank, uint32 each
        40              states, then zeros up to 12288 bytes

Each state is the number of its generator and its length, uint32 each, and so many bytes:

::

    1  torch     the CPU generator's, as torch gives it
    2  cuda      the current CUDA device's generator's, as torch gives it
    3  numpy     MT19937 of ``numpy.random``: 624 uint32, position and has_gauss int32, cached gauss float64
    4  random    Python's ``random``: 624 uint32 and the position, uint32; has_gauss uint32, cached gauss float64

The size does not depend on which generators there are, so the state of any process loads on any other.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from resumable_data.errors import CorruptStateError, StateError

NUM_BYTES = 12288
GENERATORS = {1: "torch", 2: "cuda", 3: "numpy", 4: "random"}

_MAGIC = b"RDRANDOM"
_FORMAT_VERSION = 1
_HEADER = struct.Struct("<8sIIQ")
_PLACE = struct.Struct("<4I")
_STATE = struct.Struct("<2I")
_NUMPY_TAIL = struct.Struct("<2id")
_PYTHON_TAIL = struct.Struct("<Id")
_WORDS = np.dtype("<u4")
_PYTHON_VERSION = 3  # of the states that `random.getstate` gives


class Place(NamedTuple):
    """One process among those that saved.

    Attributes:
        world_size: Processes.
        process: This one.
        num_replicas: Data-parallel ranks.
        dp_rank: This one's.
    """

    world_size: int
    process: int
    num_replicas: int
    dp_rank: int


def encode_states(place: Place, states: Mapping[str, bytes]) -> bytes:
    """Place and states of generators, by `GENERATORS`, as exactly `NUM_BYTES` bytes.

    Raises:
        StateError: They do not fit.
    """
    numbers = {name: number for number, name in GENERATORS.items()}
    parts = [_STATE.pack(numbers[name], len(state)) + state for name, state in states.items()]
    body = _PLACE.pack(*place) + b"".join(parts)
    if len(body) > NUM_BYTES - _HEADER.size:
        sizes = ", ".join(f"{name} {len(state)}" for name, state in states.items())
        raise StateError(
            f"expected random states of at most {NUM_BYTES - _HEADER.size} bytes, found {sizes}: this torch has other "
            "generators than those that the format was made for. Nothing was saved; leave RandomStates out."
        )
    return (_HEADER.pack(_MAGIC, _FORMAT_VERSION, len(body), xxhash.xxh3_64_intdigest(body)) + body).ljust(
        NUM_BYTES, b"\0"
    )


def decode_states(data: bytes) -> tuple[Place, dict[str, bytes]]:
    """The reverse of `encode_states`.

    Raises:
        CorruptStateError: They are damaged, or of another format.
    """
    if len(data) != NUM_BYTES or not data.startswith(_MAGIC):
        raise _corrupt(f"{NUM_BYTES} bytes that begin with {_MAGIC!r}", f"{len(data)} that begin with {data[:8]!r}")
    _, version, length, digest = _HEADER.unpack_from(data)
    if version != _FORMAT_VERSION:
        raise _corrupt(f"format version {_FORMAT_VERSION}", f"version {version}")
    body = data[_HEADER.size :][:length]
    if len(body) != length or xxhash.xxh3_64_intdigest(body) != digest:
        raise _corrupt(f"{length} bytes of checksum {digest:016x}", "others")
    try:
        return Place(*_PLACE.unpack_from(body)), dict(_states(body))
    except (struct.error, KeyError):
        raise _corrupt("states of known generators", "something else") from None


def _states(body: bytes) -> list[tuple[str, bytes]]:
    found, at = [], _PLACE.size
    while at < len(body):
        number, length = _STATE.unpack_from(body, at)
        at += _STATE.size
        found.append((GENERATORS[number], body[at : at + length]))
        at += length
    return found


def _corrupt(expected: str, found: str) -> CorruptStateError:
    return CorruptStateError(
        f"random states are damaged: expected {expected}, found {found}. Random numbers would go on somewhere else. "
        "Load an earlier checkpoint; or leave RandomStates out and allow only_in_checkpoint, and seed the generators."
    )


def encode_numpy(state: Mapping[str, Any]) -> bytes:
    """What ``numpy.random.get_state(legacy=False)`` gives.

    Raises:
        StateError: The global generator is another one than numpy's own.
    """
    if state["bit_generator"] != "MT19937":
        raise StateError(
            f"expected numpy's global generator to be MT19937, found {state['bit_generator']}, which somebody set in "
            "its place. Its state is not one that could be saved. Nothing was saved; leave RandomStates out."
        )
    words, position = state["state"]["key"], state["state"]["pos"]
    return bytes(words.astype(_WORDS)) + _NUMPY_TAIL.pack(position, state["has_gauss"], state["gauss"])


def decode_numpy(data: bytes) -> dict[str, Any]:
    """What ``numpy.random.set_state`` takes."""
    words = np.frombuffer(data, _WORDS, 624).astype(np.uint32)
    position, has_gauss, gauss = _NUMPY_TAIL.unpack(data[words.nbytes :])
    return {
        "bit_generator": "MT19937",
        "state": {"key": words, "pos": position},
        "has_gauss": has_gauss,
        "gauss": gauss,
    }


def encode_python(state: tuple[Any, ...]) -> bytes:
    """What ``random.getstate()`` gives."""
    _, words, gauss = state
    return np.array(words, _WORDS).tobytes() + _PYTHON_TAIL.pack(gauss is not None, gauss or 0.0)


def decode_python(data: bytes) -> tuple[Any, ...]:
    """What ``random.setstate`` takes."""
    words = np.frombuffer(data, _WORDS, 625)
    has_gauss, gauss = _PYTHON_TAIL.unpack(data[words.nbytes :])
    return _PYTHON_VERSION, tuple(words.tolist()), gauss if has_gauss else None

"""Random numbers of samples and updates: functions of the seed and the place in the run, whoever draws them.

`sample_generator` is for datasets: what it draws for a position of the run is the same on any rank, with any number
of workers, and after any restart. `update_seed` is for what each rank draws by itself in an update, such as dropout.
"""

from __future__ import annotations

import sys
from operator import index
from struct import pack
from threading import get_ident
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.random import PCG64, Generator
from numpy.random.bit_generator import ISpawnableSeedSequence
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from resumable_data.errors import UsageError
from resumable_data.order.arguments import checked_name, checked_seed
from resumable_data.order.keys import key_message

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

# Raised whenever the same arguments would give other numbers.
_VERSION = 1

_WORD = np.dtype("<u8")

# What a worker is asked for: the bytes of the rows' int64 IDs, position of the first row, distance to the next, and
# the bytes of the int64 positions of the last rows where these repeat samples (padding and filler rows).
Request = tuple[bytes, int, int, bytes]


def sample_generator(k: int | None = None) -> Generator:
    """The random generator of the sample that is being read, keyed by the loader's seed and the sample's position.

    A sample has one generator: calls for the same row go on where the last one stopped. Padding and filler rows get
    the numbers of the sample that they repeat.

    Args:
        k: The row. Leave it out in ``__getitem__``. In ``__getitems__``, which reads several rows, and in
            ``collate_fn`` it is the row's index in the batch that was asked for.

    Raises:
        UsageError: No loader of this package is reading a sample, or `k` does not say which one.

    >>> import resumable_data as rd
    >>> class Noise:
    ...     def __len__(self):
    ...         return 6
    ...     def __getitem__(self, index):
    ...         return sample_generator().integers(1000)
    >>> def draw(rank, num_replicas):
    ...     loader = rd.ResumableLoader(
    ...         Noise(), global_batch=6, microbatch=6, epochs=1, rank=rank, num_replicas=num_replicas
    ...     )
    ...     return next(iter(loader)).data.tolist()
    >>> draw(0, 1) == [number for pair in zip(draw(0, 2), draw(1, 2)) for number in pair]
    True
    """
    return _current().generator(k)


def update_seed(seed: int, update: int, dp_rank: int, purpose: str = "") -> int:
    """A seed for what one rank draws in one update, such as dropout.

    Args:
        seed: Of the run, in [0, 2**63).
        update: Index of the update, as in ``microbatch.update``.
        dp_rank: The data-parallel rank; peers of it, say tensor-parallel ones, get the same seed.
        purpose: Keeps streams of one update apart.

    Returns:
        In [0, 2**64): what ``torch.manual_seed`` and ``torch.cuda.manual_seed`` take.

    Raises:
        UsageError: An argument is not as described.

    >>> update_seed(0, 7, 3) == update_seed(0, 7, 3)
    True
    >>> len({update_seed(0, 7, 3), update_seed(0, 7, 4), update_seed(0, 8, 3), update_seed(0, 7, 3, "ema")})
    4
    """
    message = _message("rng.update_seed", seed, name=checked_name(purpose))
    return xxh3_64_intdigest(message + pack("<2Q", _count("update", update), _count("dp_rank", dp_rank)))


def sample_stream(purpose: str, seed: int) -> bytes:
    """What the keys of all samples' random numbers for `purpose` start with."""
    return _message(purpose, seed, name="")


def sample_key(stream: bytes, position: int) -> bytes:
    """What the random numbers of the sample at `position` are a hash of."""
    return stream + position.to_bytes(8, "little")


# gc=False: one is made for every microbatch, none is in a cycle
class Fetch(msgspec.Struct, gc=False):
    """The reading of one microbatch; `sample_generator` works while it is among the `ACTIVE` ones.

    Attributes:
        stream: See `sample_stream`.
        request: What is read.
        samples: The list that the rows are added to, one after another.
        is_batched: Whether all rows are read by one call instead.
        alone: The one row that is read, where the rows of a batch are read again one at a time.
        generators: Those that were asked for, by row.
    """

    stream: bytes
    request: Request
    samples: list[Any]
    is_batched: bool
    alone: int | None = None
    generators: dict[int, Generator] = {}  # msgspec makes a new one for each

    def read_again(self, row: int) -> None:
        """From now on `row` alone is read, its random numbers from their start."""
        self.alone = row
        self.generators.clear()

    def generator(self, k: int | None) -> Generator:
        """See `sample_generator`."""
        row = self._row(k)
        generator = self.generators.get(row)
        if generator is None:
            seed: Any = _Seed(sample_key(self.stream, self.position(row)))  # numpy's stubs know only its own kind
            generator = self.generators[row] = Generator(PCG64(seed))
        return generator

    def next_position(self) -> int:
        """Position of the row that is read next, where they are read one at a time."""
        return self.position(len(self.samples))

    def position(self, row: int) -> int:
        """Position of a row in the run; of the sample that it repeats where it is a padding or filler row."""
        ids, start, stride, repeats = self.request
        at = 8 * row - (len(ids) - len(repeats))
        return start + stride * row if at < 0 else int.from_bytes(repeats[at : at + 8], sys.byteorder)

    def _row(self, k: int | None) -> int:
        first, num_rows = (0, len(self.request[0]) // 8) if self.alone is None else (self.alone, 1)
        if not self.is_batched and len(self.samples) < num_rows:  # within __getitem__
            if k is None or index(k) == 0:
                return len(self.samples)
            raise UsageError(
                f"sample_generator(k={k!r}) was called in __getitem__, which reads one row. Random numbers of another "
                "row would be used twice; call sample_generator() there."
            )
        if k is None:
            raise UsageError(
                f"sample_generator() was called where {num_rows} rows are read at once. Which row's numbers are meant "
                "is unknown, and one row's for all would depend on the number of ranks; in __getitems__ and in "
                "collate_fn give the row's index in the batch, sample_generator(k)."
            )
        if not 0 <= index(k) < num_rows:
            raise UsageError(
                f"expected k in [0, {num_rows}), the rows that were asked for; found {k!r}. There is no such sample, "
                "so it has no random numbers; count rows in the order in which they were asked for."
            )
        return first + index(k)


ACTIVE: dict[int, Fetch] = {}
"""What each thread reads, by `threading.get_ident`."""


def _current() -> Fetch:
    """What this thread reads; or what the only thread that reads does, for the threads of a dataset's own pool."""
    fetch = ACTIVE.get(get_ident())
    if fetch is not None:
        return fetch
    others = list(ACTIVE.values())
    if len(others) == 1:
        return others[0]
    if others:
        raise UsageError(
            f"sample_generator() was called in a thread that reads for one of {len(others)} loaders; which one is "
            "unknown, and another one's random numbers would be silently wrong. Call it in the thread that called "
            "the dataset, and hand the generator over."
        )
    raise UsageError(
        "sample_generator() was called while no loader reads a sample, so there is no position to key random numbers "
        "by. Call it in the __getitem__ or __getitems__ of a dataset that ResumableLoader or evaluation_loader reads, "
        "or in their collate_fn; a plain DataLoader knows no positions."
    )


def current_position() -> int:
    """Position of the row that this thread reads, one at a time."""
    return ACTIVE[get_ident()].next_position()


class _Seed(ISpawnableSeedSequence):
    """Seeds a numpy bit generator with a hash of `key`, in less time than numpy's SeedSequence takes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._num_children = 0

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        """``(n_words,)`` of uint32 or uint64, the same on every platform."""
        little = _WORD if dtype is np.uint64 else np.dtype(dtype).newbyteorder("<")
        num_digests = -(-n_words * little.itemsize // 16)
        digests = b"".join([xxh3_128_digest(self._key, seed=number) for number in range(num_digests)])
        return np.frombuffer(digests, little, n_words).astype(dtype)

    def spawn(self, n_children: int) -> list[_Seed]:
        """Seeds of `n_children` further generators, unrelated to one another and to this one."""
        first = self._num_children
        self._num_children += n_children
        return [_Seed(self._key + pack("<Q", child)) for child in range(first, self._num_children)]


def _message(purpose: str, seed: int, *, name: str) -> bytes:
    return key_message(version=_VERSION, purpose=purpose, seed=checked_seed(seed), epoch=0, length=0, name=name)


def _count(what: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= index(value) < 1 << 63:
        raise UsageError(
            f"{what} must be an integer in [0, 2**63), got {value!r}. A rounded or guessed number would give another "
            f"run's random numbers; give microbatch.update and the data-parallel rank."
        )
    return index(value)

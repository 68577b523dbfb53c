"""A trace: what a run's updates did, a line of JSON each, after a line that says what was recorded and by what.

Each line ends with a checksum that also depends on the lines before it, so that a changed, missing or foreign line is
seen. Floats are written so that reading gives the same 64 bits; those that are not finite are the strings ``"nan"``,
``"inf"`` and ``"-inf"``, as JSON has no numbers for them.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import xxhash

from resumable_data.errors import TraceError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = "resumable_data.trace"
SCHEMA_VERSION = 1

LINE_BYTES_MAX = 1 << 20
UPDATES_MAX = 1 << 20

StructT = TypeVar("StructT", bound=msgspec.Struct)


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: what the numbers below it are of.

    Attributes:
        run_id: The run.
        num_replicas: Data-parallel ranks.
        axes: Names and sizes of all axes of the job's mesh, the slowest first.
        data_axes: Those along which ranks read different samples.
        num_devices: Processes of the job.
        global_batch: Samples, rows or tokens of one update, as the recipe says.
        dtype: What the model computes in, ``"float32"`` or ``"bfloat16"``, say: how much rounding to expect.
        precision: What else there is to say about precision, in the user's words.
        has_update_norm: Whether the norm of each update is recorded.
        device: What it ran on.
        package_version: Of this package.
        torch_version: Of torch.
        format: Says that this is a trace.
        schema_version: Which fields there are.
    """

    run_id: str
    num_replicas: int
    axes: tuple[tuple[str, int], ...]
    data_axes: tuple[str, ...]
    num_devices: int
    global_batch: int
    dtype: str
    precision: str = ""
    has_update_norm: bool = True
    device: str = ""
    package_version: str = ""
    torch_version: str = ""
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION


class Throughput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast an update was: apart from the rest, as it says nothing about what was learned.

    Attributes:
        seconds: From the end of the update before; of the first one, from its first microbatch [s].
        samples_per_s: Samples, all devices together.
        tokens_per_s: Target tokens; None where they are not counted.
        samples_per_device_s: Samples per device.
        tokens_per_device_s: Target tokens per device.
    """

    seconds: float
    samples_per_s: float
    tokens_per_s: float | None
    samples_per_device_s: float
    tokens_per_device_s: float | None


class UpdateRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line: one optimizer update.

    Attributes:
        update: Index of the update in the run.
        loss: The mean over the global batch, weighted as the gradient is.
        gradient_norm: Of the gradient that the optimizer was given, over all parameters.
        update_norm: Of the difference that the step made to the parameters; None where it is not recorded.
        learning_rates: Of each parameter group, by its name, as the step used it.
        loss_scale: The gradient scaler's factor; 1 without one.
        skipped: Whether the scaler skipped the step.
        optimizer_steps: Smallest and largest step counter of the optimizer's state after the step; None where the
            optimizer has none.
        scheduler_step: The scheduler's counter before the step; None without one.
        samples: Samples read.
        tokens: Target tokens; None where they are not counted.
        sample_digest: Of the positions and IDs of these samples, whatever rank read them: 32 hexadecimal digits.
        throughput: How fast.
    """

    update: int
    loss: float
    gradient_norm: float
    update_norm: float | None = None
    learning_rates: dict[str, float]
    loss_scale: float = 1.0
    skipped: bool = False
    optimizer_steps: tuple[int, int] | None = None
    scheduler_step: int | None = None
    samples: int
    tokens: int | None = None
    sample_digest: str
    throughput: Throughput | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that was read.

    Attributes:
        path: Its file.
        header: The first line.
        updates: The others, in the order of updates, one after another.
        is_torn: Whether the last line was cut, as a kill does, and left out.
    """

    path: str
    header: TraceHeader
    updates: tuple[UpdateRecord, ...]
    is_torn: bool = False

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a trace.

        Args:
            path: Its file.

        Raises:
            TraceError: It cannot be read, is no trace, or is damaged anywhere but for a last line that a kill cut.
        """
        lines = _Lines(Path(path))
        with _open(Path(path)) as file:
            header = lines.header(file)
            updates = tuple(lines.updates(file))
        return cls(path=str(path), header=header, updates=updates, is_torn=lines.is_torn)


def encode_line(line: TraceHeader | UpdateRecord, before: int) -> tuple[bytes, int]:
    """A line of the file, and its checksum.

    Args:
        line: What it says.
        before: The checksum of the line before it; 0 for the first one.
    """
    body = msgspec.json.encode(_spelled(msgspec.to_builtins(line)))[:-1]
    check = xxhash.xxh3_64_intdigest(body, before)
    return body + b',"check":"%016x"}\n' % check, check


_CHECK_BYTES = len(b',"check":"0123456789abcdef"}\n')


def _spelled(value: Any) -> Any:
    """The same with numbers that JSON does not have as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _spelled(item) for key, item in value.items()}
    return value


class _Lines:
    """Lines of one file, as far as they were read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        self._check = 0
        self.is_torn = False

    def header(self, file: IO[bytes]) -> TraceHeader:
        line = self._next(file)
        if line is None:
            raise self._error("a trace's first line", "the end of the file")
        if FORMAT.encode() not in line:
            raise self._error(
                f"the first line of a trace, which names {FORMAT}", shown(line[:60].decode(errors="replace"))
            )
        header = self._decode(line, TraceHeader)
        if (header.format, header.schema_version) != (FORMAT, SCHEMA_VERSION):
            raise self._error(f"schema version {SCHEMA_VERSION}, which this version reads", str(header.schema_version))
        return header

    def updates(self, file: IO[bytes]) -> Iterator[UpdateRecord]:
        last: int | None = None
        while (line := self._next(file)) is not None:
            record = self._decode(line, UpdateRecord)
            if last is not None and record.update != last + 1:
                raise self._error(f"update {last + 1}", f"update {record.update}")
            if self._number > UPDATES_MAX + 1:
                raise self._error(f"at most {UPDATES_MAX} updates", "more")
            last = record.update
            yield record

    def _next(self, file: IO[bytes]) -> bytes | None:
        """The next line that is whole, its end included; None after the last one."""
        line = file.readline(LINE_BYTES_MAX)
        self._number += 1
        if line.endswith(b"\n"):
            return line
        if len(line) == LINE_BYTES_MAX:
            raise self._error(f"a line of at most {LINE_BYTES_MAX} bytes", "a longer one")
        # the header is put there whole, so a file that was cut inside it was not cut by a kill
        if line and self._number == 1:
            raise self._error("a trace's first line", "a part of one")
        self.is_torn = bool(line)
        return None

    def _decode(self, line: bytes, kind: type[StructT]) -> StructT:
        body, end = line[:-_CHECK_BYTES], line[-_CHECK_BYTES:]
        self._check = xxhash.xxh3_64_intdigest(body, self._check)
        if end != b',"check":"%016x"}\n' % self._check:
            raise self._error(
                "a line with the checksum that was written with it", "one that was changed, or lost one before it"
            )
        try:
            # not strict: it takes "inf" for a number
            return msgspec.convert(msgspec.json.decode(body + b"}"), kind, strict=False)
        except msgspec.MsgspecError as error:
            raise self._error(f"a {kind.__name__}", str(error)) from None

    def _error(self, expected: str, found: str) -> TraceError:
        return TraceError(
            f"{shown(self._path)}, line {self._number}: expected {expected}, found {found}. Nothing was compared: a "
            "verdict on numbers that were changed would mean nothing. Restore the file from a copy, or record it again."
        )


def _open(path: Path) -> IO[bytes]:
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise TraceError(f"cannot read {shown(path)}: {error.strerror}. Nothing was compared.") from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise TraceError(f"{shown(path)}: expected the file of a trace, found a directory, pipe or device.")

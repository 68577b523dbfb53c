"""What ranks tell each other: at the first delivery, that they start at the same place; before a save, what they read.

Two small collective calls. Neither happens while training goes on, nor in ``state_dict()``.
"""

from __future__ import annotations

import struct
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
import xxhash

from resumable_data.cursor import NO_ROWS, Lanes, add_lanes, decode_cursor, encode_cursor
from resumable_data.errors import DisagreementError, FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed import ProcessGroup

    from resumable_data.cursor import Cursor

_SHOWN = 4


class Report(NamedTuple):
    """What one process tells the others.

    Attributes:
        rank: Its data-parallel rank.
        num_replicas: How many it believes there are.
        settings: A hash of the settings that must be equal on all ranks.
        cursor: A hash of its cursor.
        lane_0: First lane of the digest of its own rows since the last agreement.
        lane_1: Second lane.
        run: The number of the run as far as this process knows, else a proposal; the first process's is taken.
        is_fenced: Whether the ledger says that another launch goes on with the run; only the first process looks.
    """

    rank: int
    num_replicas: int
    settings: int
    cursor: int
    lane_0: int
    lane_1: int
    run: int
    is_fenced: bool


_FORMAT = struct.Struct("<7Q?")


def cursor_hash(cursor: Cursor) -> int:
    """A 64-bit hash that is equal where cursors are."""
    return xxhash.xxh3_64_intdigest(encode_cursor(cursor))


def exchange(report: Report, group: ProcessGroup) -> list[Report]:
    """All processes' reports, in the order of their ranks in `group`. Collective."""
    gathered = all_gather_bytes(_FORMAT.pack(*report), group)
    return [Report(*_FORMAT.unpack(part)) for part in gathered]


def gather_numbers(number: int, group: ProcessGroup) -> list[int]:
    """All processes' numbers. Collective."""
    gathered = all_gather_bytes(number.to_bytes(8, "little", signed=True), group)
    return [int.from_bytes(part, "little", signed=True) for part in gathered]


def gather_cursors(cursor: Cursor, group: ProcessGroup) -> list[Cursor]:
    """All processes' cursors. Collective; only called to explain a disagreement."""
    return [decode_cursor(part) for part in all_gather_bytes(encode_cursor(cursor), group)]


def all_gather_bytes(payload: bytes, group: ProcessGroup) -> list[bytes]:
    """All processes' payloads, which have the same size everywhere, in the order of ranks. Collective."""
    device = torch.device("cuda") if "nccl" in dist.get_backend(group) else torch.device("cpu")
    local = torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(device)
    gathered = torch.empty(dist.get_world_size(group) * len(payload), dtype=torch.uint8, device=device)
    # torch 2.13 gave all_gather_into_tensor this name, and warns at the old one
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(gathered, local, group=group)
    everything = gathered.cpu().numpy().tobytes()
    return [everything[start : start + len(payload)] for start in range(0, len(everything), len(payload))]


def check_reports(reports: Sequence[Report], *, explain: Callable[[], Sequence[Cursor]]) -> None:
    """Make sure that the processes are one rank set at one cursor.

    Args:
        reports: One per process.
        explain: Gives all processes' cursors, called where their hashes differ.

    Raises:
        DisagreementError: They are not; names the processes and what differs.
    """
    sizes = [report.num_replicas for report in reports]
    if len(set(sizes)) > 1:
        raise _disagreement("the number of data-parallel ranks", sizes)
    missing = sorted(set(range(sizes[0])) - {report.rank for report in reports})
    if missing:
        raise DisagreementError(
            f"expected all data-parallel ranks 0 .. {sizes[0] - 1} among {len(reports)} processes, none has rank "
            f"{', '.join(map(str, missing[:_SHOWN]))}{' ...' if len(missing) > _SHOWN else ''}. Its samples would "
            "never be read; check rank=, num_replicas= and data_axes=."
        )
    # before the settings, since a cursor's fields can be named: two seeds make two orders as well
    if len({report.cursor for report in reports}) > 1:
        raise _cursors_differ(explain())
    if len({report.settings for report in reports}) > 1:
        raise _disagreement(
            "the loader's settings, shown as a hash (epochs, microbatch, pad_microbatches, gradient_reduction, seed)",
            [f"{report.settings:016x}" for report in reports],
        )


def check_fence(reports: Sequence[Report]) -> None:
    """Make sure that no other launch took the run over.

    Raises:
        FencedError: One did.
    """
    if any(report.is_fenced for report in reports):
        raise FencedError(
            "another launch of this run claimed a newer attempt in the ledger, so the run goes on there. A checkpoint "
            "saved here would be of a branch that nobody goes on with, or would replace the other launch's. Nothing "
            "was saved; stop this job, or stop the other one and restart this one from a checkpoint. Two jobs that are "
            "both meant need a ledger each."
        )


def sum_reports(reports: Sequence[Report]) -> Lanes:
    """The digest of all data-parallel ranks' rows, each rank counted once; for the error see `sum_lanes`."""
    return sum_lanes([(report.rank, (report.lane_0, report.lane_1)) for report in reports])


def sum_lanes(of_processes: Sequence[tuple[int, Lanes]]) -> Lanes:
    """The digest of all data-parallel ranks' rows, each rank counted once.

    Args:
        of_processes: The data-parallel rank of each process, and the digest of the rows that it was handed.

    Raises:
        DisagreementError: Peers of one data-parallel rank read different samples.
    """
    lanes: dict[int, Lanes] = {}
    for process, (rank, own) in enumerate(of_processes):
        if lanes.setdefault(rank, own) != own:
            raise DisagreementError(
                f"process {process} and another process of data-parallel rank {rank} were handed different "
                "samples. Peers of one data-parallel rank (tensor, context, pipeline parallel) must read the same "
                "ones; nothing was saved. Check data_axes=."
            )
    return reduce(add_lanes, lanes.values(), NO_ROWS)


def _disagreement(what: str, values: Sequence[object]) -> DisagreementError:
    by_value: dict[object, list[int]] = {}
    for process, value in enumerate(values):
        by_value.setdefault(value, []).append(process)
    table = "\n".join(f"  {value!s}  on {shown_processes(where)}" for value, where in by_value.items())
    return DisagreementError(
        f"processes disagree on {what}:\n{table}\nThey would read overlapping or missing samples. Nothing was saved; "
        "give all processes the same settings and load the same checkpoint on all of them."
    )


def _cursors_differ(cursors: Sequence[Cursor]) -> DisagreementError:
    fields = [_flatten(cursor) for cursor in cursors]
    lines = []
    for name in fields[0]:
        by_value: dict[str, list[int]] = {}
        for process, flat in enumerate(fields):
            by_value.setdefault(repr(flat.get(name)), []).append(process)
        if len(by_value) > 1:
            lines += [f"  {name} = {value}  on {shown_processes(where)}" for value, where in by_value.items()]
    return DisagreementError(
        "processes hold different cursors:\n" + "\n".join(lines) + "\nThey would repeat or skip samples after a "
        "restart. Nothing was saved; load the same checkpoint on all processes, and commit on all of them."
    )


def _flatten(cursor: Cursor) -> dict[str, object]:
    flat: dict[str, object] = {f"recipe.{name}": value for name, value in cursor.recipe.fields().items()}
    flat.update({name: getattr(cursor, name) for name in cursor.__struct_fields__ if name != "recipe"})
    return flat


def shown_processes(numbers: Sequence[int]) -> str:
    """Some processes, as a text for errors."""
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return f"process {shown}" + (f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else "")

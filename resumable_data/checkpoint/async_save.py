"""Saves beside training: the state is copied, and a thread of DCP's writes it while the loop goes on."""

from __future__ import annotations

import inspect
import os
import warnings
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from resumable_data.checkpoint.collective import ALONE_WARNING
from resumable_data.checkpoint.prepare import prepare_save
from resumable_data.checkpoint.running import AsyncSave, set_running

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from resumable_data.checkpoint.prepare import Prepared
    from resumable_data.checkpoint.probe import Probe
    from resumable_data.checkpoint.run_manifest import RunManifest
    from resumable_data.loader import ResumableLoader


def async_save_checkpoint(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    loader: ResumableLoader | None = None,
    checksums: str = "crc32",
    allowances: tuple[str, ...] = (),
    keep: int | None = None,
    run: RunManifest | None = None,
    probe: Probe | None = None,
) -> AsyncSave:
    """Save as `save_checkpoint` does, and return as soon as the state was copied to host memory. Collective.

    Agreement between processes, the claim of the directory, digests and the ledger's sync come before it returns, and
    what changes afterwards is not in the checkpoint. Files are written by a thread, which ends with the manifest.
    A save that still runs is waited for, so that there is never more than one.

    Args:
        path: As for `save_checkpoint`.
        state: As for `save_checkpoint`.
        loader: As for `save_checkpoint`.
        checksums: As for `save_checkpoint`.
        allowances: As for `save_checkpoint`.
        run: As for `save_checkpoint`.
        keep: As for `save_checkpoint`.
        probe: As for `save_checkpoint`.

    Returns:
        The save. That it failed is an error of its `result`, and else of the next save, on all processes.

    Raises:
        ResumableDataError: As for `save_checkpoint`, but for what goes wrong while files are written.
    """
    prepared = prepare_save(
        Path(path),
        state,
        loader=loader,
        checksums=checksums,
        allowances=allowances,
        keep=keep,
        run=run,
        probe=probe,
    )
    future = _start(prepared.state, _CommittingWriter(prepared))
    return set_running(AsyncSave(prepared.path, future, prepared.mark_saved))


def _start(state: dict[str, Any], writer: _CommittingWriter) -> Future[Any]:
    group = _own_group()
    if group is None:
        # The thread would warn that there is one process only. What a thread warns of cannot be caught for it alone.
        warnings.filterwarnings("ignore", ALONE_WARNING)
    arguments: dict[str, Any] = {"storage_writer": writer, "process_group": group}
    stager = _make_stager()
    if stager is not None:
        arguments["async_stager"] = stager
    try:
        response = dcp.async_save(state, **arguments)
    except Exception as error:
        # The state could not be copied. The others wait for this process by now, and are told by the writer's error.
        writer.failure = error
        response = dcp.async_save({}, **arguments)
    assert isinstance(response, Future)  # as it is where the copy is made before the call returns
    if stager is not None:
        response.add_done_callback(lambda _: stager.close())
    return response


def _make_stager() -> Any:
    """What DCP copies the state with where nobody asks otherwise; None where torch is too old to be given it.

    The writer could do it, and does with such a torch: it copies each DTensor three times.
    """
    if "async_stager" not in inspect.signature(dcp.async_save).parameters:
        return None
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    return DefaultStager(StagingOptions(False, False, False, False))


class _CommittingWriter(FileSystemWriter):
    """Writes what ``dcp.save`` does, and the manifest when all processes' files are there.

    DCP tells all processes of an error in it, so that a checkpoint is complete for all of them or for none.
    """

    def __init__(self, prepared: Prepared) -> None:
        super().__init__(prepared.path)
        self._prepared = prepared
        self.failure: Exception | None = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The first thing that DCP asks for; an error here is one of the save."""
        if self.failure is not None:
            raise self.failure
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The last thing, on the first process alone."""
        super().finish(metadata, results)
        self._prepared.commit()


_groups: weakref.WeakKeyDictionary[ProcessGroup, weakref.ref[ProcessGroup]] = weakref.WeakKeyDictionary()


def _own_group() -> ProcessGroup | None:
    """A process group that nothing else talks on while a save runs; made once. Collective at the first call.

    DCP's thread talks while the loop trains. Calls of two threads on one group would be taken for each other's.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    world = dist.group.WORLD
    assert world is not None
    known = _groups.get(world)
    group: ProcessGroup | None = None if known is None else known()
    if group is None:
        group = dist.new_group(backend="gloo")
        assert group is not None
        _groups[world] = weakref.ref(group)
    return group

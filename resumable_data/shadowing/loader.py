"""A loader that hands out exactly what another one does, and notes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable_data.shadowing.recorder import recorder_at
from resumable_data.shadowing.records import End, Hashes, Ids, Record, Saved
from resumable_data.shadowing.row_hashes import hash_rows
from resumable_data.shadowing.sample_ids import Twin, can_see_ids, describe_epoch, ids_of

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator

    from resumable_data.shadowing.recorder import Recorder

_OWN = frozenset({"_loader", "_recorder", "_twin"})


def shadow(
    loader: Any, path: str | os.PathLike[str], *, rank: int | None = None, num_replicas: int | None = None
) -> Shadow:
    """Watch what a training loop is handed by any loader, to see after a restart what it read again and what never.

    The loop gets the very same batches. For torch's DataLoader over a map-style dataset the IDs of their samples are
    noted, for anything else a hash of each row's contents. `audit_shadow`, or ``resumable-data audit-ids --shadow
    DIR``, says what they show. Trouble, say a full disk or a batch that cannot be hashed, is logged once and ends the
    noting, never the loop.

    Args:
        loader: Anything that can be iterated.
        path: A directory, one for each loader; all ranks and all restarts of the job use the same one.
        rank: Data-parallel rank; of the process group when None, else of the environment, else 0. Where several ranks
            read the same samples (tensor parallelism, say), shadow the loader on one of them and say the data-parallel
            rank.
        num_replicas: Number of data-parallel ranks; likewise.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path:
    ...     list(shadow([[1, 2], [3]], path))
    [[1, 2], [3]]
    """
    return Shadow(loader, recorder_at(Path(path), rank, num_replicas))


class Shadow:
    """What `shadow` returns: iterate it in place of the loader, of which it has every other attribute.

    Args:
        loader: The loader.
        recorder: Where it is noted what the loop is handed.
    """

    def __init__(self, loader: Any, recorder: Recorder) -> None:
        self._loader = loader
        self._recorder = recorder
        self._twin: Twin | None = None

    def __iter__(self) -> ShadowIterator:
        """The loader's batches; a new iteration is a new epoch."""
        loader, recorder = self._loader, self._recorder
        recorder.begin(lambda num_replicas: describe_epoch(loader, num_replicas))
        if recorder.is_stopped or not can_see_ids(loader):
            return ShadowIterator(iter(loader), None, recorder)
        if self._twin is None:
            self._twin = Twin(loader)
        return ShadowIterator(*self._twin.iterate(), recorder)

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return bool(self._loader)

    def mark_saved(self) -> None:
        """Note that a checkpoint was saved; optional. Work after the newest one is lost in a restart, and read again.

        Call it after the save, on the ranks that save. With it, the audit can tell what is read again because it was
        lost from what is trained on twice.
        """
        self._recorder.record(Saved)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a script asks its loader for."""
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._loader, name, value)


class ShadowIterator:
    """The iterator of a `Shadow`, over that of its loader, of which it has every other attribute.

    Args:
        batches: The loader's iterator.
        given: What the sampler gave for batches that were not handed out yet; None where that is not seen.
        recorder: Where it is noted what the loop is handed.
    """

    def __init__(self, batches: Iterator[Any], given: deque[Any] | None, recorder: Recorder) -> None:
        self._batches = batches
        self._given = given
        self._recorder = recorder
        self._number = recorder.num_begun
        self._is_over = False

    def __iter__(self) -> ShadowIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._is_over:
                self._is_over = True
                self._recorder.record(self._end)
            raise
        except Exception as error:
            self._recorder.stop(f"the loader raised {type(error).__name__}, and which batch comes next is unknown")
            raise
        self._recorder.record(lambda: self._note(batch))
        if self._given is not None and self._recorder.is_stopped:
            self._given.clear()
        return batch

    def _note(self, batch: Any) -> Record:
        self._check_newest()
        if self._is_over:
            raise RuntimeError("the loader goes on after its end")
        if self._given is None:
            return Hashes(hash_rows(batch))
        if not self._given:
            raise RuntimeError("the loader gave more batches than its sampler made")
        ids = ids_of(self._given.popleft())
        return Hashes(hash_rows(batch)) if ids is None else Ids(ids)

    def _end(self) -> Record:
        self._check_newest()
        if self._given:
            raise RuntimeError("the loader gave fewer batches than its sampler made")
        return End()

    def _check_newest(self) -> None:
        if self._number != self._recorder.num_begun:
            raise RuntimeError("two iterators over the loader are in use at once")

    def __getattr__(self, name: str) -> Any:
        if name in ("_batches", "_given", "_recorder", "_number", "_is_over"):
            raise AttributeError(name)
        return getattr(self._batches, name)

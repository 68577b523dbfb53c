"""Asking the operating system for pages of a mapped file that are read soon."""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resumable_data.order.protocol import Int64Array

_NUM_SAMPLED = 4


class PageRequests:
    """Asks for the pages of ranges, unless a sample of them is in the page cache already.

    To ask for all of them would cost as much as reading them then. The sample is read with ``RWF_NOWAIT``, which
    refuses where that would wait for a disk; where a system has no such read, all are asked for.

    Args:
        descriptor: Of the file; it is duplicated.
        mapped: The file, mapped.
    """

    def __init__(self, descriptor: int, mapped: mmap.mmap) -> None:
        self._map: Any = mapped
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._is_random = False
        self._can_sample = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
        self._byte = bytearray(1)

    def ask(self, starts: Int64Array, sizes: Int64Array) -> None:
        """Ask for ranges that begin at `starts` and have `sizes`: ``(k,)`` int64 each [bytes]."""
        if not hasattr(self._map, "madvise"):
            return
        self._read_at_random()
        if self._are_in_memory(starts[:: max(1, starts.size // _NUM_SAMPLED)]):
            return
        starts, sizes = starts[sizes > 0], sizes[sizes > 0]
        begins = starts & -mmap.PAGESIZE
        for begin, size in zip(begins.tolist(), (starts + sizes - begins).tolist(), strict=True):
            if begin < len(self._map):
                try:  # noqa: SIM105  # `suppress` takes longer than the call
                    self._map.madvise(mmap.MADV_WILLNEED, begin, size)
                except OSError:
                    pass  # advice that is not taken costs time and nothing else

    def _are_in_memory(self, places: Int64Array) -> bool:
        """Whether the byte at each of these places can be read without waiting."""
        if not self._can_sample:
            return False
        try:
            for place in places.tolist():
                os.preadv(self._descriptor, (self._byte,), place, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # the file system has no such read
            self._can_sample = False
            return False
        return True

    def _read_at_random(self) -> None:
        """Do not read ahead of a page fault: that brings in what nobody asked for, and slows down what was."""
        if not self._is_random:
            self._is_random = True
            with suppress(OSError):
                self._map.madvise(mmap.MADV_RANDOM)
            with suppress(OSError):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

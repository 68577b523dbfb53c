"""Writing Megatron's indexed datasets, whole or not at all. The format is described in `megatron`."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import SourceError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.ledger.writer import sync_directory, write_all
from resumable_data.sources.megatron import DTYPE_CODES, HEADER, MAGIC, VERSION, megatron_paths
from resumable_data.sources.token_file import TokenFile, write_failures

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.protocol import TokenArray

DOCUMENT_TOKENS_MAX = 2**31 - 1
_CHUNK = 1 << 18
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_CODES = {np.dtype(name): code for code, name in DTYPE_CODES.items()}


class MegatronWriter:
    """Writes ``NAME.bin`` and ``NAME.idx``; each document is one sequence. Takes 0 bytes of memory per document.

    To be used in a ``with`` statement: both files appear under their names when its block ends, ``NAME.idx`` last, so
    that a dataset that can be opened is a whole one. Where the block fails nothing is left. A process that is killed
    leaves ``.NAME.bin.unfinished`` and ``.NAME.idx.unfinished``, which the next writer of the same name overwrites.

    Args:
        path: Either file, or their common name without the ending.
        dtype: Integer type of the tokens: uint8, int8, uint16, int16, int32 or int64.
        force: Whether files that are there already are replaced.

    Raises:
        UsageError: A file is there already, the folder is not, another process writes the same dataset, or the format
            has no such type.
        SourceError: A file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], /, *, dtype: Any, force: bool = False) -> None:
        self._index_path, self._bin_path = megatron_paths(path)
        self._dtype = np.dtype(dtype)
        if self._dtype not in _CODES:
            names = ", ".join(sorted(known.name for known in _CODES))
            raise UsageError(f"expected one of the format's types, {names}; found {self._dtype}. Nothing was written.")
        self._force = force
        self._num_documents = self._num_tokens = 0
        self._bin: TokenFile | None = None
        self._lock = self._index = -1

    @property
    def num_documents(self) -> int:
        """Documents that were added."""
        return self._num_documents

    @property
    def num_tokens(self) -> int:
        """Tokens that were added."""
        return self._num_tokens

    @property
    def paths(self) -> tuple[Path, Path]:
        """The tokens and the index, as they are named when they are whole."""
        return self._bin_path, self._index_path

    @property
    def unfinished_path(self) -> Path:
        """The tokens, as they are named until they are whole: for another process, to open a `TokenFile`."""
        return _unfinished(self._bin_path)

    def __enter__(self) -> MegatronWriter:
        with write_failures(self._bin_path):
            if not self._bin_path.parent.is_dir():
                raise UsageError(
                    f"there is no folder {shown(self._bin_path.parent)}; nothing was written. Make it first."
                )
            self._lock = self._open_locked(self.unfinished_path)
            try:
                self._refuse_existing()
                os.ftruncate(self._lock, 0)
                self._bin = TokenFile(self.unfinished_path)
                self._index = os.open(_unfinished(self._index_path), _FLAGS | os.O_TRUNC, 0o666)
                write_all(self._index, bytes(HEADER.size))  # the counts in it are known at the end
            except BaseException:
                self._discard()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with write_failures(self._bin_path):
                    self._finish()
        finally:
            self._discard()

    def add(self, tokens: TokenArray, lengths: Int64Array) -> None:
        """Append documents.

        Args:
            tokens: ``(n,)`` of the writer's type, document after document.
            lengths: ``(k,)`` int64, the tokens of each; their sum is n.

        Raises:
            UsageError: They do not fit, or a document has more tokens than the format can say.
            SourceError: They cannot be written.
        """
        if tokens.dtype != self._dtype or tokens.ndim != 1 or int(lengths.sum()) != tokens.size:
            raise UsageError(
                f"expected {int(lengths.sum())} tokens of type {self._dtype} by the lengths of documents, found "
                f"{tokens.dtype} of shape {tokens.shape}. Documents would hold each other's tokens."
            )
        offset = self.reserve(lengths)
        assert self._bin is not None
        self._bin.write(tokens, offset)

    def reserve(self, lengths: Int64Array) -> int:
        """Append documents whose tokens are written by someone else, to a `TokenFile` of `unfinished_path`.

        Args:
            lengths: ``(k,)`` int64, the tokens of each.

        Returns:
            Where the tokens of the first one begin in the file [bytes]; the others follow it.

        Raises:
            UsageError: A document has more tokens than the format can say.
            SourceError: The index cannot be written.
        """
        if lengths.size and not 0 <= int(lengths.min()) <= int(lengths.max()) <= DOCUMENT_TOKENS_MAX:
            raise UsageError(
                f"expected documents of 0 to {DOCUMENT_TOKENS_MAX} tokens, as the format's lengths are int32; found "
                f"{int(lengths.min())} to {int(lengths.max())}. Split the document."
            )
        with write_failures(self._bin_path):
            write_all(self._index, lengths.astype("<i4").tobytes())
        offset: int = self._num_tokens * self._dtype.itemsize
        self._num_documents += lengths.size
        self._num_tokens += int(lengths.sum())
        return offset

    def _finish(self) -> None:
        if not self._num_tokens:
            raise SourceError(
                f"expected tokens for {shown(self._bin_path)}, found none in {self._num_documents} documents. A run "
                "would have nothing to read; nothing was written."
            )
        size = os.fstat(self._lock).st_size
        if size != self._num_tokens * self._dtype.itemsize:
            raise UsageError(
                f"expected {self._num_tokens} tokens of type {self._dtype} in {shown(self._bin_path)}, as their "
                f"documents were reserved; found {size} bytes. Nothing was written. Write what was reserved."
            )
        self._write_pointers()
        self._write_documents()
        counts = (self._num_documents, self._num_documents + 1)
        os.pwrite(self._index, HEADER.pack(MAGIC, VERSION, _CODES[self._dtype], *counts), 0)
        os.fsync(self._lock)
        os.fsync(self._index)
        # An index that stands beside tokens belongs to them, whenever the machine stops.
        if self._force:
            self._index_path.unlink(missing_ok=True)
            sync_directory(self._index_path.parent)
        placed: list[Path] = []
        try:
            for path in self.paths:
                os.rename(_unfinished(path), path)
                placed.insert(0, path)
                sync_directory(path.parent)
        except BaseException:
            for path in placed:
                path.unlink()
            raise

    def _write_pointers(self) -> None:
        """Where each document begins, from the lengths that the index holds already."""
        begin = 0
        for first in range(0, self._num_documents, _CHUNK):
            count = min(_CHUNK, self._num_documents - first)
            data = os.pread(self._index, 4 * count, HEADER.size + 4 * first)
            ends = begin + np.cumsum(np.frombuffer(data, "<i4"), dtype=np.int64) * self._dtype.itemsize
            write_all(self._index, np.concatenate(([begin], ends[:-1])).astype("<i8").tobytes())
            begin = int(ends[-1])

    def _write_documents(self) -> None:
        for first in range(0, self._num_documents + 1, _CHUNK):
            stop = min(first + _CHUNK, self._num_documents + 1)
            write_all(self._index, np.arange(first, stop, dtype="<i8").tobytes())

    def _open_locked(self, path: Path) -> int:
        """Open a file that no other writer has open; a lock ends with its process, whatever ends that."""
        while True:
            descriptor = os.open(path, _FLAGS, 0o666)
            if not _try_lock(descriptor):
                os.close(descriptor)
                raise UsageError(f"another process is writing {shown(self._bin_path)}; nothing was written.")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
            os.close(descriptor)  # another writer finished in between, and the name is free or the next one's

    def _refuse_existing(self) -> None:
        found = [shown(path) for path in self.paths if os.path.lexists(path)]
        if found and not self._force:
            raise UsageError(
                f"{' and '.join(found)} exist already; nothing was written. Name others, or replace them with force "
                "(--force)."
            )

    def _discard(self) -> None:
        """Close both files; remove what still has its temporary name, while it is locked."""
        if self._bin is not None:
            self._bin.close()
        for path, descriptor in ((self._index_path, self._index), (self._bin_path, self._lock)):
            if descriptor >= 0:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(_unfinished(path))
                os.close(descriptor)
        self._bin, self._lock, self._index = None, -1, -1


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: two writers at once are not noticed there
    return True


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")

"""Processes that turn parts of files into tokens, and write them where the order of the parts says.

A worker has a pipe of its own. It is handed parts, and answers each with the lengths of its documents. Once the parts
before are answered it is told where the tokens go in the file, and writes them itself. So the files do not depend on
who is faster, tokens pass through no pipe, and no more than a few parts per worker are under way. A worker ends when
the other end of its pipe does, also where that was killed.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from multiprocessing import get_context, resource_tracker
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from resumable_data.errors import ResumableDataError, UsageError
from resumable_data.sources.token_file import TokenFile
from resumable_data.tokenizing.protocol import dtype_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.megatron_writer import MegatronWriter
    from resumable_data.sources.protocol import TokenArray
    from resumable_data.tokenizing.documents import DocumentReader
    from resumable_data.tokenizing.inputs import Format, Input, Span
    from resumable_data.tokenizing.protocol import Tokenizer

    Part: TypeAlias = list[Span]

_PARTS_PER_WORKER = 4  # so that a worker seldom waits for the process that hands out parts
_JOIN_S = 5.0


class Counts(NamedTuple):
    """The documents of a part.

    Attributes:
        lengths: ``(k,)`` int64, the tokens of each document that has some.
        skipped: Documents that have none.
    """

    lengths: Int64Array
    skipped: int


class Encoder(NamedTuple):
    """What turns a part into tokens, the same in every process."""

    inputs: list[Input]
    readers: dict[Format, DocumentReader]
    tokenizer: Tokenizer

    def encode(self, part: Part) -> tuple[TokenArray, Counts]:
        """The tokens of all documents of a part.

        Raises:
            SourceError: A file cannot be read, or holds something else.
        """
        documents: list[bytes] = []
        for span in part:
            one = self.inputs[span.number]
            documents += self.readers[one.format].read(one, span)
        tokens, lengths = self.tokenizer.encode(documents)
        dtype = dtype_of(self.tokenizer.name.vocabulary)
        if tokens.dtype != dtype or tokens.size != int(lengths.sum()) or len(lengths) != len(documents):
            raise UsageError(
                f"expected a tokenizer that gives {len(documents)} documents in {dtype}, found {len(lengths)} of "
                f"{int(lengths.sum())} tokens, and {tokens.size} of type {tokens.dtype}. Documents would hold each "
                "other's tokens. Mend the tokenizer."
            )
        held = lengths[lengths > 0]
        return tokens, Counts(held, lengths.size - held.size)


def encode_parts(
    encoder: Encoder, parts: Iterator[Part], writer: MegatronWriter, jobs: int
) -> Generator[tuple[Part, int]]:
    """Write the documents of all parts, in order; after each part, that and the number of documents left out of it.

    Args:
        encoder: What encodes a part.
        parts: The parts.
        writer: What is written to.
        jobs: Processes; with 1 there is no other than this one.

    Raises:
        SourceError: A file cannot be read or written, or holds something else.
        ResumableDataError: A process ended, say for want of memory.
    """
    if jobs == 1:
        for part in parts:
            tokens, counts = encoder.encode(part)
            writer.add(tokens, counts.lengths)
            yield part, counts.skipped
        return
    workers: list[_Worker] = []
    pending: deque[tuple[Part, _Worker]] = deque()
    try:
        for number, part in enumerate(parts):
            if number < jobs:
                workers.append(_Worker(encoder, writer.unfinished_path))
            if len(pending) == _PARTS_PER_WORKER * jobs:
                yield _place_oldest(pending, writer)
            # In turns: whoever has the oldest part is the one that is waited for.
            worker = workers[number % jobs]
            worker.send(part)
            pending.append((part, worker))
        while pending:
            yield _place_oldest(pending, writer)
        for worker in workers:
            worker.finish()
    finally:
        for worker in workers:
            worker.end()


def _place_oldest(pending: deque[tuple[Part, _Worker]], writer: MegatronWriter) -> tuple[Part, int]:
    part, worker = pending.popleft()
    counts = worker.receive_counts()
    worker.send(writer.reserve(counts.lengths))
    return part, counts.skipped


class _Worker:
    """One process, as the one that started it sees it."""

    def __init__(self, encoder: Encoder, path: Path) -> None:
        context = get_context("spawn")  # a fork of a process with threads may hang
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, encoder, path), daemon=True)
        self._num_unwritten = 0
        # Ctrl-C is for the process that started it, which ends its workers. A mask is inherited from the first moment;
        # but the tracker, where start() has to start it, unblocks the signal again.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            other.close()

    def send(self, message: Part | int) -> None:
        """Hand over a part, or say at which byte of the file the oldest part goes that has no place yet."""
        self._num_unwritten += isinstance(message, int)
        try:
            self._pipe.send(message)
        except OSError:
            raise self._dead() from None

    def receive_counts(self) -> Counts:
        """What the oldest part holds that is not answered yet."""
        while True:
            answer = self._receive()
            if answer is not None:
                return answer

    def finish(self) -> None:
        """Wait until all that has a place is written."""
        while self._num_unwritten:
            self._receive()

    def end(self) -> None:
        """End the process, at once."""
        self._pipe.close()
        self._process.terminate()
        self._process.join(_JOIN_S)

    def _receive(self) -> Counts | None:
        """The next answer; None where something was written."""
        try:
            answer: Counts | Exception | None = self._pipe.recv()
        except (EOFError, OSError):
            raise self._dead() from None
        if isinstance(answer, Exception):
            raise answer
        self._num_unwritten -= answer is None
        return answer

    def _dead(self) -> ResumableDataError:
        self._process.join(_JOIN_S)
        return ResumableDataError(
            f"a process that made tokens ended (exit code {self._process.exitcode}), say for want of memory. Nothing "
            "was written. Use fewer jobs (--jobs), or look at what it printed."
        )


def _work(pipe: Connection, encoder: Encoder, path: Path) -> None:
    # N processes with as many threads each as there are cores would only get into each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    waiting: deque[TokenArray] = deque()
    try:
        with TokenFile(path) as file:
            while True:
                pipe.send(_answer(encoder, file, waiting, pipe.recv()))
    except (EOFError, OSError):
        return  # the process that started this one is gone, or needs no more


def _answer(
    encoder: Encoder, file: TokenFile, waiting: deque[TokenArray], message: Part | int
) -> Counts | Exception | None:
    """Encode a part, or write the oldest that was encoded."""
    try:
        if isinstance(message, int):
            file.write(waiting.popleft(), message)
            return None
        tokens, counts = encoder.encode(message)
    except ResumableDataError as error:
        return error
    except Exception as error:
        return ResumableDataError(f"unexpected {type(error).__name__} in a process that made tokens: {error}")
    waiting.append(tokens)
    return counts

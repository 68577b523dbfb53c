"""Processes that turn parts of files into tokens; what they give comes back in the order of the parts.

A worker is handed parts through a pipe of its own, and answers through it. So nothing is shared, no more than two
parts per worker are under way, and a worker ends when the other end of its pipe does, also where that was killed.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from multiprocessing import get_context
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.errors import ResumableDataError
from resumable_data.tokenizing.protocol import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from resumable_data.tokenizing.documents import DocumentReader
    from resumable_data.tokenizing.inputs import Format, Input, Span
    from resumable_data.tokenizing.protocol import Tokenizer

_PARTS_PER_WORKER = 2
_JOIN_S = 5.0


class Encoder(NamedTuple):
    """What turns a part into tokens, the same in every process."""

    inputs: list[Input]
    readers: dict[Format, DocumentReader]
    tokenizer: Tokenizer

    def encode(self, part: list[Span]) -> Tokens:
        """The tokens of all documents of a part.

        Raises:
            SourceError: A file cannot be read, or holds something else.
        """
        documents: list[bytes] = []
        for span in part:
            one = self.inputs[span.number]
            documents += self.readers[one.format].read(one, span)
        return self.tokenizer.encode(documents)


def encode_all(encoder: Encoder, parts: Iterator[list[Span]], jobs: int) -> Iterator[tuple[list[Span], Tokens]]:
    """Each part with its tokens, in order.

    Args:
        encoder: What encodes a part.
        parts: The parts.
        jobs: Processes; with 1 there is no other than this one.

    Raises:
        SourceError: A file cannot be read, or holds something else.
        ResumableDataError: A process ended, say for want of memory.
    """
    if jobs == 1:
        yield from ((part, encoder.encode(part)) for part in parts)
        return
    workers: list[_Worker] = []
    pending: deque[tuple[list[Span], _Worker]] = deque()
    try:
        for number, part in enumerate(parts):
            if number < jobs:
                workers.append(_Worker(encoder))
            if len(pending) == _PARTS_PER_WORKER * jobs:
                yield _next(pending)
            # In turns: the oldest part is always the one that is waited for, whoever is faster.
            worker = workers[number % jobs]
            worker.send(part)
            pending.append((part, worker))
        while pending:
            yield _next(pending)
    finally:
        for worker in workers:
            worker.end()


def _next(pending: deque[tuple[list[Span], _Worker]]) -> tuple[list[Span], Tokens]:
    part, worker = pending.popleft()
    return part, worker.receive()


class _Worker:
    """One process, as the one that started it sees it."""

    def __init__(self, encoder: Encoder) -> None:
        context = get_context("spawn")  # a fork of a process with threads may hang
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, encoder), daemon=True)
        # Ctrl-C is for the process that started it, which ends its workers. A mask is inherited from the first moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            other.close()

    def send(self, part: list[Span]) -> None:
        """Hand over a part."""
        try:
            self._pipe.send(part)
        except OSError:
            raise self._dead() from None

    def receive(self) -> Tokens:
        """The tokens of the oldest part that is not answered yet."""
        try:
            answer = self._pipe.recv()
            if isinstance(answer, Exception):
                raise answer
            lengths, dtype = answer
            return Tokens(np.frombuffer(self._pipe.recv_bytes(), dtype), lengths)
        except (EOFError, ConnectionError):
            raise self._dead() from None

    def end(self) -> None:
        """End the process, at once: it writes no file."""
        self._pipe.close()
        self._process.terminate()
        self._process.join(_JOIN_S)

    def _dead(self) -> ResumableDataError:
        self._process.join(_JOIN_S)
        return ResumableDataError(
            f"a process that made tokens ended (exit code {self._process.exitcode}), say for want of memory. Nothing "
            "was written. Use fewer jobs (--jobs), or look at what it printed."
        )


def _work(pipe: Connection, encoder: Encoder) -> None:
    # N processes with as many threads each as there are cores would only get into each other's way.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        while True:
            answer = _answer(encoder, pipe.recv())
            if isinstance(answer, Exception):
                pipe.send(answer)
                continue
            pipe.send((answer.lengths, answer.tokens.dtype.str))
            pipe.send_bytes(np.ascontiguousarray(answer.tokens).data.cast("B"))
    except (EOFError, OSError):
        return  # the process that started this one is gone, or needs no more


def _answer(encoder: Encoder, part: list[Span]) -> Tokens | Exception:
    try:
        return encoder.encode(part)
    except ResumableDataError as error:
        return error
    except Exception as error:
        return ResumableDataError(f"unexpected {type(error).__name__} in a process that made tokens: {error}")

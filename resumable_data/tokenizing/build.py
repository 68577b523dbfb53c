"""Files of texts to a Megatron dataset of tokens."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from resumable_data.errors import SourceError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sources.megatron import MegatronTokens, megatron_paths
from resumable_data.sources.megatron_writer import MegatronWriter
from resumable_data.tokenizing.byte_tokenizer import ByteTokenizer
from resumable_data.tokenizing.documents import JsonlReader, TextReader
from resumable_data.tokenizing.inputs import look_at, parts
from resumable_data.tokenizing.protocol import TokenizerName, dtype_of
from resumable_data.tokenizing.splitting import BLANK_LINES, BlankLines, Lines, Separator, Whole
from resumable_data.tokenizing.workers import Encoder, encode_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resumable_data.tokenizing.documents import DocumentReader
    from resumable_data.tokenizing.inputs import Format, Input
    from resumable_data.tokenizing.protocol import Tokenizer
    from resumable_data.tokenizing.splitting import Splitter

SCHEMA_VERSION = 1
DEFAULT_FIELD = "text"
_PART_BYTES = 1 << 20


class BuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was built. `to_json` and `to_text` show it.

    Attributes:
        files: The tokens and the index.
        documents: Documents in them.
        tokens: Tokens in them, end tokens included.
        skipped: Documents that were left out, as they had no token.
        dtype: Type of the tokens.
        tokenizer: What made them.
        inputs: Files that were read.
        input_bytes: Their size [bytes].
        fingerprint: That of the dataset, by a sample of its tokens.
    """

    files: tuple[str, str]
    documents: int
    tokens: int
    skipped: int
    dtype: str
    tokenizer: TokenizerName
    inputs: int
    input_bytes: int
    fingerprint: str
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """The report as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """The report for people."""
        made_by = self.tokenizer
        name = f"{made_by.path} ({made_by.digest})" if made_by.path else made_by.kind
        end = "no end token" if made_by.end_token is None else f"end token {made_by.end_token}"
        skipped = f", {self.skipped:,} without a token left out" if self.skipped else ""
        rows = {
            "files": " and ".join(self.files),
            "documents": f"{self.documents:,}{skipped}",
            "tokens": f"{self.tokens:,} of type {self.dtype}",
            "tokenizer": f"{name}, {made_by.vocabulary:,} tokens, {end}",
            "from": f"{self.inputs:,} file{'s' * (self.inputs != 1)}, {self.input_bytes:,} bytes",
            "fingerprint": self.fingerprint,
        }
        return "\n".join(f"{key:<12} {value}" for key, value in rows.items())


def build_tokens(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    /,
    *,
    tokenizer: Tokenizer | None = None,
    format: Format | None = None,
    split_on: str | bytes | None = None,
    field: str | None = None,
    jobs: int = 1,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> BuildReport:
    """Write the tokens of files of texts as ``NAME.bin`` and ``NAME.idx``, both whole or none.

    The files are the same for any number of jobs. Each takes some 30 MB of memory, or where a document is longer than
    a part of 1 MiB, four times its bytes with a `ByteTokenizer`, and what its encoding takes with another.

    Args:
        inputs: Text files and files of JSON lines. Their documents are numbered in this order.
        output: Either file, or their common name without the ending.
        tokenizer: What makes tokens; a `ByteTokenizer` by default.
        format: ``"text"`` or ``"jsonl"`` for all inputs; by default by their names, and text where those say nothing.
        split_on: Where documents of a text file end: ``"blank-lines"``, or the bytes of a separator. By default a file
            is one document.
        field: The field of JSON lines that is the document, by default ``"text"``.
        jobs: Processes.
        force: Whether files that are there already are replaced.
        progress: Called with input bytes done and in all, after each part.

    Raises:
        UsageError: An argument is wrong, or one that no input has a use for.
        SourceError: An input cannot be read or holds something else, or the output cannot be written.
    """
    if jobs < 1:
        raise UsageError(f"expected at least 1 job, found {jobs}.")
    tokenizer = tokenizer or ByteTokenizer()
    found = look_at(inputs, format)
    readers = _readers(found, split_on, field, tokenizer.needs_text)
    _refuse_own_output(found, output, force)
    encoder = Encoder(found, readers, tokenizer)
    spans = parts(found, {format: reader.splitter for format, reader in readers.items()}, _PART_BYTES)
    total, done, skipped = sum(one.size for one in found), 0, 0
    with MegatronWriter(output, dtype=dtype_of(tokenizer.name.vocabulary), force=force) as writer:
        with closing(encode_parts(encoder, spans, writer, jobs)) as written:
            for part, num_skipped in written:
                skipped += num_skipped
                done += sum(span.stop - span.start for span in part)
                if progress is not None:
                    progress(done, total)
        _refuse_nothing(writer, skipped)
    built = MegatronTokens(output)
    return BuildReport(
        files=(shown(writer.paths[0]), shown(writer.paths[1])),
        documents=len(built),
        tokens=built.num_tokens,
        skipped=skipped,
        dtype=built.dtype.name,
        tokenizer=tokenizer.name,
        inputs=len(found),
        input_bytes=total,
        fingerprint=built.fingerprint(),
    )


def _readers(
    inputs: Sequence[Input], split_on: str | bytes | None, field: str | None, needs_text: bool
) -> dict[Format, DocumentReader]:
    formats = {one.format for one in inputs}
    for name, value, format in (("split_on (--split-on)", split_on, "text"), ("field (--field)", field, "jsonl")):
        if value is not None and format not in formats:
            raise UsageError(
                f"{name} is for {format} files, found none of them. Documents would be others than were meant; nothing "
                "was written. Leave it out, or say what the files are with format (--format)."
            )
    readers: dict[Format, DocumentReader] = {}
    if "text" in formats:
        readers["text"] = TextReader(_splitter(split_on, needs_text), needs_text=needs_text)
    if "jsonl" in formats:
        readers["jsonl"] = JsonlReader(Lines(), DEFAULT_FIELD if field is None else field)
    return readers


def _splitter(split_on: str | bytes | None, needs_text: bool) -> Splitter:
    if split_on is None:
        return Whole()
    if split_on == BLANK_LINES:
        return BlankLines()
    separator = split_on.encode() if isinstance(split_on, str) else split_on
    try:
        if needs_text:
            separator.decode()
    except UnicodeDecodeError:
        raise UsageError(
            f"expected a separator in UTF-8, as the tokenizer needs text; found {separator!r}. Texts would be split "
            "within a letter."
        ) from None
    return Separator(separator)


def _refuse_own_output(inputs: Sequence[Input], output: str | os.PathLike[str], force: bool) -> None:
    """Refuse to replace what is read; without force nothing is replaced."""
    written: list[Path] = [path for path in megatron_paths(output) if force and path.exists()]
    for one in inputs:
        for path in written:
            if os.path.samefile(one.path, path):
                raise UsageError(
                    f"{shown(one.path)} is read, and would be replaced; nothing was written. Name another output."
                )


def _refuse_nothing(writer: MegatronWriter, skipped: int) -> None:
    if not writer.num_tokens:
        raise SourceError(
            f"expected documents with tokens, found {skipped} without any. A run would have nothing to read; nothing "
            "was written. Check the inputs, and where their documents end."
        )

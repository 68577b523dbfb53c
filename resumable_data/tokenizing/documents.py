"""The documents of a part of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from resumable_data.errors import UsageError
from resumable_data.tokenizing.inputs import bad_text, line_at, read_span

if TYPE_CHECKING:
    from resumable_data.errors import SourceError
    from resumable_data.tokenizing.inputs import Input, Span
    from resumable_data.tokenizing.splitting import Splitter

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHOWN_BYTES = 40
_BAD_LINE = (msgspec.DecodeError, UnicodeError, RecursionError)


class TextReader:
    """Documents of a text file, as they are in it.

    Args:
        splitter: Where they end.
        needs_text: Whether they must be UTF-8.
    """

    def __init__(self, splitter: Splitter, *, needs_text: bool) -> None:
        self.splitter = splitter
        self._needs_text = needs_text

    def read(self, one: Input, span: Span) -> list[bytes]:
        """The documents of a span.

        Raises:
            SourceError: They are not UTF-8 and must be, or cannot be read.
        """
        data = read_span(one, span)
        if self._needs_text:
            _check_text(data, one, span)
        return self.splitter.split(data)


class JsonlReader:
    """Documents of a file of JSON lines: one field of each object, as UTF-8. Blank lines are passed over.

    Args:
        field: The field's name.

    Raises:
        UsageError: No field can have that name.
    """

    def __init__(self, splitter: Splitter, field: str) -> None:
        self.splitter = splitter
        self._field = field
        self._start()

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonlReader, (self.splitter, self._field)

    def read(self, one: Input, span: Span) -> list[bytes]:
        """The documents of a span.

        Raises:
            SourceError: A line is no JSON object with the field, or its value no string.
        """
        data = read_span(one, span)
        if not span.start:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        decode = self._decoder.decode  # decode_lines() would take several objects on a line, or one on several
        try:
            return [decode(line).text.encode() for line in self.splitter.split(data)]
        except _BAD_LINE:
            raise self._first_wrong(data, one, span) from None

    def _start(self) -> None:
        try:
            kind = msgspec.defstruct("TextLine", [("text", str)], rename={"text": self._field}, gc=False)
        except ValueError as error:
            raise UsageError(
                f"expected the name of a field without quotes and backslashes, found {self._field!r:.80} ({error}). "
                "Nothing was written. Rename the field in the file."
            ) from None
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def _first_wrong(self, data: bytes, one: Input, span: Span) -> SourceError:
        expected = f"one JSON object with a string as {self._field!r}"
        for at, line in enumerate(data.split(b"\n")):
            try:
                if line.strip():
                    self._decoder.decode(line)
            except _BAD_LINE as error:
                text = line[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
                found = f"{text + '...' * (len(line) > _SHOWN_BYTES)!r} ({error})"
                where = f"line {line_at(one, span.start) + at}"
                return bad_text(
                    one, where, expected, found, "Mend the line, or name another field with field (--field)."
                )
        raise AssertionError("a part that could not be decoded has only good lines")


def _check_text(data: bytes, one: Input, span: Span) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        where = f"line {line_at(one, span.start + error.start)}"
        found = f"the byte {data[error.start]:#04x} ({error.reason})"
        remedy = "Convert the file to UTF-8, or leave out the tokenizer: bytes can be anything."
        raise bad_text(one, where, "UTF-8, as the tokenizer needs text", found, remedy) from None


DocumentReader = TextReader | JsonlReader

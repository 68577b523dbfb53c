"""Where files of documents are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.errors import UsageError
from resumable_data.tokenizing.splitting import BlankLines, Lines, Separator, Splitter, Whole, parse_separator
from tests.unit.tokenizing.reading import split_by_blank_lines, split_by_separator

texts = st.text("a-\n\r ", max_size=40).map(str.encode)
separators = st.text("a-\n", min_size=1, max_size=4).map(str.encode)


@given(texts.filter(bool), separators)
def test_separator_is_taken_from_left_to_right(data: bytes, separator: bytes) -> None:
    """A separator ends a document, wherever it repeats or overlaps itself, and nothing is lost but separators."""
    assert Separator(separator).split(data) == split_by_separator(data, separator)


@given(texts)
def test_blank_lines_stand_between_documents(data: bytes) -> None:
    """Any number of blank lines, also of spaces and also at both ends, is as good as one."""
    assert BlankLines().split(data) == split_by_blank_lines(data)


@given(
    texts.filter(bool),
    st.one_of(separators.map(Separator), st.just(BlankLines()), st.just(Lines())),
    st.integers(0, 40),
)
def test_cutting_changes_no_document(data: bytes, splitter: Splitter, at: int) -> None:
    """A file that is cut where an end was found, from any place on, holds the documents of the file read whole."""
    begin = min(at, len(data))
    found = splitter.find_end(data[begin:])
    if found >= 0:
        first, second = data[: begin + found], data[begin + found :]
        assert splitter.split(first) + (splitter.split(second) if second else []) == splitter.split(data)


@pytest.mark.parametrize(
    ("splitter", "data", "end"),
    [
        (Separator(b"--"), b"xx-x--x", 6),
        (Separator(b"--"), b"xx---x", 4),
        (Separator(b"--"), b"xx-x-", -1),
        (Separator(b"x"), b"x", 1),
        (BlankLines(), b"x\n \t\r\nx", 6),
        (BlankLines(), b"x\nx\n", -1),
        (Lines(), b"x\nx", 2),
        (Lines(), b"x", -1),
        (Whole(), b"x\n\nx", -1),
    ],
)
def test_first_certain_end_is_found(splitter: Splitter, data: bytes, end: int) -> None:
    """The end that is found is the first one that is certain."""
    assert splitter.find_end(data) == end


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        (r"\n---\n", b"\n---\n"),
        (r"a\\n\t\r\0\x1e", b"a\\n\t\r\0\x1e"),
        ("é", b"\xc3\xa9"),
        ("\udcff", b"\xff"),
        ("\n", b"\n"),
    ],
)
def test_separator_of_a_command(text: str, separator: bytes) -> None:
    """A shell's argument is bytes, with the escapes that stand for line ends and other control characters."""
    assert parse_separator(text) == separator


@pytest.mark.parametrize("text", [r"\q", "a\\", r"\x1", "\\\n"])
def test_unknown_escape_is_refused(text: str) -> None:
    """A backslash that means nothing is an error and no letter."""
    with pytest.raises(UsageError, match="hexadecimal digits in the separator"):
        parse_separator(text)


def test_empty_separator_is_refused() -> None:
    """Nothing cannot end a document."""
    with pytest.raises(UsageError, match="at least one byte"):
        Separator(b"")

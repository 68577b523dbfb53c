"""Files that are no texts, and arguments that have no meaning: an error each, and nothing written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resumable_data.errors import ResumableDataError, SourceError, UsageError
from resumable_data.tokenizing import ByteTokenizer, build_tokens
from resumable_data.tokenizing import build as build_module
from resumable_data.tokenizing import inputs as inputs_module


class Text(ByteTokenizer):
    """Bytes that must be UTF-8."""

    needs_text = True


class Killed(ByteTokenizer):
    """Ends the process that encodes with it."""

    def encode(self, documents: list[bytes], /) -> Any:
        os._exit(7)


class Broken(ByteTokenizer):
    def encode(self, documents: list[bytes], /) -> Any:
        raise RuntimeError("a bug of one's own")


def check_refused(tmp_path: Path, error: type[Exception], message: str, inputs: list[Path], **options: Any) -> None:
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(error, match=message):
        build_tokens(inputs, tmp_path / "out", **options)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("line", "message", "jobs"),
    [
        ("nope", r"found 'nope' \(JSON is malformed", 1),
        ("nope", r"found 'nope' \(JSON is malformed", 2),
        ('{"text":"a"', "truncated", 1),
        ('{"other":"a"}', "missing required field `text`", 1),
        ('{"text":7}', "Expected `str`, got `int`", 1),
        ('{"text":null}', "got `null`", 1),
        ('["a"]', "got `array`", 1),
        ('{"text":"a"} {"text":"b"}', "trailing characters", 1),
        ('{"text":"\\ud800"}', r"JSON is malformed|truncated", 1),
        ('{"text":"a","more":' + "[" * 9999 + "]" * 9999 + "}", "recursion", 1),
    ],
)
def test_bad_json_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str, jobs: int) -> None:
    """A line that is no object with a text is named by its number in the file, whichever process reads it."""
    monkeypatch.setattr(build_module, "_PART_BYTES", 30)
    path = tmp_path / "in.jsonl"
    path.write_text('{"text":"good"}\n' * 7 + "\n" + line + "\n" + '{"text":"good"}\n')
    message = r"in\.jsonl, line 9: expected one JSON object with a string as 'text', .*" + f"({message})"
    check_refused(tmp_path, SourceError, message, [path], jobs=jobs)


def test_object_on_several_lines(tmp_path: Path) -> None:
    """JSON that is laid out for people is no JSON lines."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"text":\n"a"}\n')
    check_refused(tmp_path, SourceError, "line 1: expected one JSON object", [path])


def test_bytes_that_are_no_json(tmp_path: Path) -> None:
    """A byte that is not UTF-8 within a string is an error and no other letter."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text":"\xff"}\n')
    check_refused(tmp_path, SourceError, r"line 1: .*Invalid UTF-8", [path])


@pytest.mark.parametrize("split_on", [None, "blank-lines", b"\n"])
def test_text_that_is_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_on: Any) -> None:
    """A tokenizer that needs text is not given other bytes: the line and the byte are named."""
    monkeypatch.setattr(build_module, "_PART_BYTES", 5)
    path = tmp_path / "in.txt"
    path.write_bytes("é\n\n".encode() * 6 + b"a\xe9b\n\nc\n")
    message = r"in\.txt, line 13: expected UTF-8, .* found the byte 0xe9"
    check_refused(tmp_path, SourceError, message, [path], split_on=split_on, tokenizer=Text())
    build_tokens([path], tmp_path / "out", split_on=split_on)


def test_separator_that_is_not_utf8(tmp_path: Path) -> None:
    """A separator that could stand within a letter is refused where texts are needed."""
    path = tmp_path / "in.txt"
    path.write_text("é")
    check_refused(tmp_path, UsageError, "expected a separator in UTF-8", [path], split_on=b"\xa9", tokenizer=Text())


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl"])
def test_inputs_that_are_no_files(tmp_path: Path, name: str) -> None:
    """Empty files, folders, pipes and what is not there are told apart, also where another input is good."""
    good, bad = tmp_path / "good.txt", tmp_path / name
    good.write_text("good")
    check_refused(tmp_path, SourceError, "No such file", [good, bad])
    bad.write_text("")
    check_refused(tmp_path, SourceError, "expected text, found an empty file", [good, bad])
    bad.unlink()
    bad.mkdir()
    check_refused(tmp_path, SourceError, "found a directory", [good, bad])
    bad.rmdir()
    os.mkfifo(bad)
    check_refused(tmp_path, SourceError, "found a directory, pipe", [good, bad])


def test_input_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails is an error, and no end of the file."""

    def fail(*arguments: Any) -> bytes:
        raise OSError(5, "Input/output error")

    path = tmp_path / "in.txt"
    path.write_text("good")
    monkeypatch.setattr(os, "pread", fail)
    check_refused(tmp_path, SourceError, "cannot read .*: Input/output error", [path])


def test_input_that_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is cut while it is read is an error, and no shorter dataset."""
    monkeypatch.setattr(build_module, "_PART_BYTES", 10)
    path = tmp_path / "in.txt"
    path.write_text("abcd\n" * 100)
    shrink = lambda done, total: os.truncate(path, 30)  # noqa: E731
    message = "expected 500 bytes as when it was looked at first, found"
    check_refused(tmp_path, SourceError, message, [path], split_on=b"\n", progress=shrink)


@pytest.mark.parametrize("split_on", [None, "blank-lines", b"--"])
def test_document_that_no_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_on: Any) -> None:
    """A document has a greatest length, and what is longer is told by the line where it begins."""
    monkeypatch.setattr(inputs_module, "DOCUMENT_BYTES_MAX", 100)
    monkeypatch.setattr(inputs_module, "_WINDOW_BYTES", 16)
    monkeypatch.setattr(build_module, "_PART_BYTES", 4)
    path = tmp_path / "in.txt"
    path.write_text("a\n\nb--\n\n" * (split_on is not None) + "x" * 1000)
    line = 1 if split_on is None else 5 if split_on == "blank-lines" else 3
    message = rf"in\.txt, line {line} and after: expected the end of a document within 100 bytes"
    check_refused(tmp_path, SourceError, message, [path], split_on=split_on)


@pytest.mark.parametrize("name", ["in.json", "in.txt.gz", "in.tar", "in.parquet", "in.ZST", "in.bin"])
def test_name_that_says_something_else(tmp_path: Path, name: str) -> None:
    """Packed and binary files do not become tokens by accident."""
    (tmp_path / name).write_text("{}")
    check_refused(tmp_path, UsageError, "found a name that ends in", [tmp_path / name])
    build_tokens([tmp_path / name], tmp_path / "out", format="text")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("in.txt", {"field": "text"}, r"field \(--field\) is for jsonl files"),
        ("in.jsonl", {"split_on": "blank-lines"}, r"split_on \(--split-on\) is for text files"),
        ("in.txt", {"split_on": ""}, "at least one byte"),
        ("in.txt", {"jobs": 0}, "at least 1 job"),
        ("in.jsonl", {"field": 'a"b'}, "the name of a field without quotes"),
    ],
)
def test_arguments_without_a_meaning(tmp_path: Path, name: str, options: Any, message: str) -> None:
    """An argument that would be passed over is refused."""
    (tmp_path / name).write_text('{"text":"a"}')
    check_refused(tmp_path, UsageError, message, [tmp_path / name], **options)
    check_refused(tmp_path, UsageError, "at least one file", [])


def test_input_that_would_be_replaced(tmp_path: Path) -> None:
    """What is read is not written over."""
    path = tmp_path / "out.bin"
    path.write_text("mine")
    check_refused(tmp_path, UsageError, "is read, and would be replaced", [path], format="text", force=True)
    assert path.read_text() == "mine"


def test_worker_that_dies(tmp_path: Path) -> None:
    """A process that ends, say for want of memory, is an error at once and no wait for ever."""
    (tmp_path / "in.txt").write_text("a")
    message = r"a process that made tokens ended \(exit code 7\)"
    check_refused(tmp_path, ResumableDataError, message, [tmp_path / "in.txt"], tokenizer=Killed(), jobs=2)


def test_worker_with_a_bug(tmp_path: Path) -> None:
    """What goes wrong in another process is told in this one."""
    (tmp_path / "in.txt").write_text("a")
    message = "unexpected RuntimeError in a process that made tokens: a bug of one's own"
    check_refused(tmp_path, ResumableDataError, message, [tmp_path / "in.txt"], tokenizer=Broken(), jobs=2)

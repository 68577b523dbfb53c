"""Datasets of tokens from files of texts, with the byte tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resumable_data as rd
from resumable_data.errors import SourceError, UsageError
from resumable_data.tokenizing import ByteTokenizer, TokenizerName, Tokens, build_tokens
from resumable_data.tokenizing import build as build_module
from resumable_data.tokenizing import inputs as inputs_module
from tests.unit.tokenizing.reading import byte_tokens, read_megatron, split_by_blank_lines, split_by_separator

JSON_LINES = ["", "abc", "é\u2028\n", "x" * 50, " ", "\0", "last"]


def build(tmp_path: Path, contents: bytes | str, name: str = "in.txt", **options: Any) -> Any:
    (tmp_path / name).write_bytes(contents.encode() if isinstance(contents, str) else contents)
    return build_tokens([tmp_path / name], tmp_path / "out", force=True, **options)


def write_jsonl(path: Path, texts: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": at, field: text}) + "\n" for at, text in enumerate(texts)))
    return path


@settings(max_examples=60)
@given(
    st.lists(st.binary(min_size=1, max_size=60).map(lambda data: data.replace(b"\xff", b"\n")), min_size=1, max_size=4),
    st.one_of(st.none(), st.just("blank-lines"), st.sampled_from([b"\n", b"\n\n", b"\0", b"\x01\x01"])),
    st.integers(1, 40),
    st.integers(1, 8),
    st.sampled_from([256, 0, 10, None]),
)
def test_all_texts_are_there(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[bytes],
    split_on: Any,
    part_bytes: int,
    window_bytes: int,
    end_token: int | None,
) -> None:
    """Whatever files hold and wherever they are cut, each document is in the dataset, in order and byte for byte."""
    folder = tmp_path_factory.mktemp("corpus")
    documents: list[bytes] = []
    for at, data in enumerate(files):
        (folder / f"{at}.txt").write_bytes(data)
        if split_on is None:
            documents.append(data)
        elif split_on == "blank-lines":
            documents += split_by_blank_lines(data)
        else:
            documents += split_by_separator(data, split_on)
    expected = byte_tokens(documents, end_token)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "_PART_BYTES", part_bytes)
        patch.setattr(inputs_module, "_WINDOW_BYTES", window_bytes)
        options: Any = {"tokenizer": ByteTokenizer(end_token), "split_on": split_on}
        paths = [folder / f"{at}.txt" for at in range(len(files))]
        if not expected:
            with pytest.raises(SourceError, match="expected documents with tokens"):
                build_tokens(paths, folder / "out", **options)
            return
        report = build_tokens(paths, folder / "out", **options)
    assert read_megatron(folder / "out") == expected
    assert (report.documents, report.skipped) == (len(expected), len(documents) - len(expected))


def test_files_do_not_depend_on_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, two and three write the same bytes, from inputs of all kinds in parts of all sizes."""
    monkeypatch.setattr(build_module, "_PART_BYTES", 300)
    generator = np.random.default_rng(3)
    texts = ["x" * int(size) for size in generator.integers(0, 400, 60)]
    write_jsonl(tmp_path / "a.jsonl", texts[:30])
    (tmp_path / "b.txt").write_text("\n\n".join(texts[30:]) + "\n\n")
    (tmp_path / "c.txt").write_bytes(bytes(range(256)) * 8)
    inputs = [tmp_path / name for name in ("a.jsonl", "b.txt", "c.txt")]
    reports = [
        build_tokens(inputs, tmp_path / f"out{jobs}", jobs=jobs, tokenizer=ByteTokenizer(None), split_on=b"\n\n")
        for jobs in (1, 2, 3)
    ]
    documents = [*map(str.encode, texts), bytes(range(256)) * 8]
    assert read_megatron(tmp_path / "out1") == byte_tokens(documents, None)
    for ending in ("bin", "idx"):
        assert len({(tmp_path / f"out{jobs}.{ending}").read_bytes() for jobs in (1, 2, 3)}) == 1
    assert len({(one.documents, one.tokens, one.skipped, one.fingerprint) for one in reports}) == 1


def test_report(tmp_path: Path) -> None:
    """The report says what was written, and its fingerprint is that of the source that is opened."""
    report = build(tmp_path, "abc\n\n\n\nd", split_on=b"\n\n")
    source = rd.open_tokens(tmp_path / "out")
    assert source.fingerprint() == report.fingerprint
    assert (report.documents, report.tokens, report.skipped, report.dtype) == (3, 7, 0, "uint16")
    assert report.files == (str(tmp_path / "out.bin"), str(tmp_path / "out.idx"))
    assert (report.inputs, report.input_bytes) == (1, 8)
    assert report.tokenizer == TokenizerName(kind="bytes", vocabulary=257, end_token=256)
    assert json.loads(report.to_json())["schema_version"] == 1


def test_json_lines(tmp_path: Path) -> None:
    """The field of each object is a document as UTF-8, a blank line is none, and an empty text is an end token."""
    write_jsonl(tmp_path / "in.jsonl", JSON_LINES, "body")
    data = b"\xef\xbb\xbf" + (tmp_path / "in.jsonl").read_bytes().replace(b"\n", b"\r\n\n \n", 2)
    report = build(tmp_path, data, "in.jsonl", field="body")
    assert read_megatron(tmp_path / "out") == byte_tokens([text.encode() for text in JSON_LINES])
    assert (report.documents, report.skipped) == (len(JSON_LINES), 0)
    report = build(tmp_path, data, "in.jsonl", field="body", tokenizer=ByteTokenizer(None))
    assert read_megatron(tmp_path / "out") == byte_tokens([text.encode() for text in JSON_LINES], None)
    assert (report.documents, report.skipped) == (len(JSON_LINES) - 1, 1)


@settings(max_examples=30)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=9), st.integers(1, 60)
)
def test_any_text_in_json(tmp_path_factory: pytest.TempPathFactory, texts: list[str], part_bytes: int) -> None:
    """Whatever letters a text has, escaped or not, and wherever the file is cut, its UTF-8 is what is written."""
    folder = tmp_path_factory.mktemp("corpus")
    for escaped in (True, False):
        lines = [json.dumps({"more": [1, {}], "text": text}, ensure_ascii=escaped) for text in texts]
        (folder / f"{escaped}.jsonl").write_bytes("\n".join(lines).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "_PART_BYTES", part_bytes)
        build_tokens([folder / "True.jsonl", folder / "False.jsonl"], folder / "out")
    assert read_megatron(folder / "out") == byte_tokens([text.encode() for text in texts]) * 2


def test_format_by_name_or_by_word(tmp_path: Path) -> None:
    """A name that ends in .jsonl is JSON lines, another is text, and what is said goes before the name."""
    line = '{"text":"a"}\n'
    for name, options, expected in (
        ("in.NDJSON", {}, b"a"),
        ("in.jsonl", {"format": "text"}, line.encode()),
        ("in.json", {"format": "jsonl"}, b"a"),
        ("in", {}, line.encode()),
    ):
        build(tmp_path, line, name, **options)
        assert read_megatron(tmp_path / "out") == byte_tokens([expected])


def test_progress_counts_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called after each part is told of all bytes at the end, and never of fewer than before."""
    monkeypatch.setattr(build_module, "_PART_BYTES", 10)
    calls: list[tuple[int, int]] = []
    build(tmp_path, "abc\n" * 50, split_on=b"\n", progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert len(calls) > 10
    assert calls[-1] == (200, 200)


def test_large_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is split is never read whole, and at most a document longer than a part."""
    longest = 0
    read = inputs_module._Reader.read

    def watched(self: Any, start: int, num_bytes: int) -> bytes:
        nonlocal longest
        longest = max(longest, num_bytes)
        return read(self, start, num_bytes)

    monkeypatch.setattr(inputs_module._Reader, "read", watched)
    monkeypatch.setattr(build_module, "_PART_BYTES", 1000)
    monkeypatch.setattr(inputs_module, "_WINDOW_BYTES", 10)
    build(tmp_path, ("x" * 99 + "\n") * 1000, split_on=b"\n")
    assert len(rd.open_tokens(tmp_path / "out")) == 1000
    assert 1000 <= longest <= 1100


class Words:
    """A tokenizer of one's own: a token for each word, its length."""

    name = TokenizerName(kind="words", vocabulary=70_000, end_token=None)
    needs_text = True

    def __init__(self, dtype: str = "int32") -> None:
        self.dtype = dtype

    def encode(self, documents: list[bytes]) -> Tokens:
        words = [document.split() for document in documents]
        tokens = [len(word) for document in words for word in document]
        return Tokens(np.array(tokens, self.dtype), np.array([len(document) for document in words], np.int64))


def test_tokenizer_of_ones_own(tmp_path: Path) -> None:
    """Any object with a name and `encode` is a tokenizer; a large vocabulary is written as int32."""
    report = build(tmp_path, "one three\n\n \n\nfive", split_on=b"\n\n", tokenizer=Words())
    assert read_megatron(tmp_path / "out") == [[3, 5], [4]]
    assert (report.dtype, report.skipped) == ("int32", 1)
    with pytest.raises(UsageError, match="Mend the tokenizer"):
        build(tmp_path, "one", tokenizer=Words("int64"))


@pytest.mark.parametrize("end_token", [-1, 257])
def test_end_token_outside_the_vocabulary(end_token: int) -> None:
    """Bytes and one more are all the tokens there are."""
    with pytest.raises(UsageError, match="expected an end token from 0 to 256"):
        ByteTokenizer(end_token)

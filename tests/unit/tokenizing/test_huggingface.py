"""Tokenizers of Hugging Face's `tokenizers`; the tests of what it encodes need the package."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from resumable_data.cli import main
from resumable_data.errors import SourceError, UsageError
from resumable_data.tokenizing import HuggingFaceTokenizer, build_tokens
from resumable_data.tokenizing import build as build_module
from tests.unit.tokenizing.reading import read_megatron

VOCABULARY = {"[UNK]": 0, "a": 1, "b": 2, "é": 3, "<end>": 4, "<begin>": 5, "<pad>": 6}


def write_tokenizer(path: Path, vocabulary: dict[str, int] = VOCABULARY, **more: Any) -> Path:
    """A tokenizer of words, which begins each text, cuts it and fills it up where it is allowed to."""
    special = [
        {"id": vocabulary[name], "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for name in ("<end>", "<begin>", "<pad>")
    ]
    begin = {"SpecialToken": {"id": "<begin>", "type_id": 0}}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    content = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 6,
            "pad_type_id": 0,
            "pad_token": "<pad>",
        },
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, sequence],
            "pair": [begin, sequence],
            "special_tokens": {"<begin>": {"id": "<begin>", "ids": [vocabulary["<begin>"]], "tokens": ["<begin>"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    path.write_text(json.dumps(content | more))
    return path


def expected_tokens(text: str, end: list[int]) -> list[int]:
    return [VOCABULARY.get(word, 0) for word in text.split()] + end


TEXTS = ["a b é", "", "a b " * 30, "who?", "  ", "é <end> a"]


@pytest.mark.parametrize(("end_token", "end"), [("<end>", [4]), (4, [4]), (None, [])])
def test_words_are_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_token: Any, end: list[int]) -> None:
    """A text becomes its own tokens and the end token: nothing is cut, filled up or put before it."""
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(build_module, "_PART_BYTES", 20)
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    tokenizer = HuggingFaceTokenizer(write_tokenizer(tmp_path / "tokenizer.json"), end_token)
    expected = [expected_tokens(text, end) for text in TEXTS]
    report = build_tokens([path], tmp_path / "out", tokenizer=tokenizer)
    assert read_megatron(tmp_path / "out") == [tokens for tokens in expected if tokens]
    assert report.skipped == expected.count([])
    assert (report.dtype, report.tokenizer.vocabulary, report.tokenizer.end_token) == (
        "uint16",
        7,
        end[0] if end else None,
    )


def test_other_processes_use_the_same_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers encode as one process does, also where the file of the tokenizer is gone by then."""
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(build_module, "_PART_BYTES", 20)
    (tmp_path / "in.txt").write_text("\n".join(["a b é", "b", "c"] * 20))
    path = write_tokenizer(tmp_path / "tokenizer.json")
    tokenizer = HuggingFaceTokenizer(path, "<end>")
    path.unlink()
    for jobs in (1, 2):
        build_tokens([tmp_path / "in.txt"], tmp_path / f"out{jobs}", tokenizer=tokenizer, jobs=jobs, split_on=b"\n")
    assert read_megatron(tmp_path / "out1") == [expected_tokens(text, [4]) for text in ["a b é", "b", "c"] * 20]
    for ending in ("bin", "idx"):
        assert len({(tmp_path / f"out{jobs}.{ending}").read_bytes() for jobs in (1, 2)}) == 1


@pytest.mark.parametrize(("largest", "dtype"), [(65_535, "uint16"), (65_536, "int32")])
def test_type_fits_the_largest_token(tmp_path: Path, largest: int, dtype: str) -> None:
    """The type holds every token of the vocabulary, also where numbers are left out of it."""
    pytest.importorskip("tokenizers")
    (tmp_path / "in.txt").write_text("a far")
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json", VOCABULARY | {"far": largest})
    report = build_tokens([tmp_path / "in.txt"], tmp_path / "out", tokenizer=HuggingFaceTokenizer(tokenizer))
    assert (report.dtype, report.tokenizer.vocabulary) == (dtype, largest + 1)
    assert read_megatron(tmp_path / "out") == [[1, largest]]


@pytest.mark.parametrize("end_token", ["<eos>", 7, 2**40, -1, ""])
def test_end_token_that_is_not_there(tmp_path: Path, end_token: Any) -> None:
    """An end token must be in the vocabulary; the message names those that may be meant."""
    pytest.importorskip("tokenizers")
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match=r"Its special tokens are \['<end>', '<begin>', '<pad>'\]"):
        HuggingFaceTokenizer(tokenizer, end_token)


@pytest.mark.parametrize("contents", ["nope", "{}", '{"version":"1.0"}', "\0"])
def test_file_that_is_no_tokenizer(tmp_path: Path, contents: str) -> None:
    """Another file is an error that says so."""
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text(contents)
    with pytest.raises(SourceError, match="expected a tokenizer of Hugging Face's tokenizers, found"):
        HuggingFaceTokenizer(tmp_path / "tokenizer.json")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command takes an end token by its name or its number, and says what made the tokens."""
    pytest.importorskip("tokenizers")
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "in.txt").write_text("a b")
    arguments = ["tokens", "build", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), "--force"]
    for end_token in ("<end>", "4"):
        assert main([*arguments, "--tokenizer", str(tokenizer), "--end-token", end_token]) == 0
        assert read_megatron(tmp_path / "out") == [[1, 2, 4]]
    text = capsys.readouterr().out
    assert f"tokenizer    {tokenizer} (" in text
    assert "), 7 tokens, end token 4\n" in text
    (tmp_path / "in.txt").write_bytes(b"a\n\xff")
    assert main([*arguments, "--tokenizer", str(tokenizer)]) == 3
    assert "in.txt, line 2: expected UTF-8" in capsys.readouterr().err


def test_package_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the package the error has the command that installs it, and nothing is written."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "in.txt").write_text("a b")
    before = sorted(os.listdir(tmp_path))
    arguments = [str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), "--tokenizer", str(tokenizer)]
    assert main(["tokens", "build", *arguments]) == 2
    assert "install it with pip install 'resumable-data[tokenizers]'" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == before

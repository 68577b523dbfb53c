"""The documents that the demo trains on: paragraphs of what every Python has at hand, its standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from resumable_data.tokenizing import BuildReport, build_tokens
from resumable_data.tokenizing.splitting import BLANK_LINES

CORPUS_BYTES = 56_000
"""Of the text. Rows of 256 tokens: some 220 an epoch."""


def build_corpus(folder: Path, num_bytes: int = CORPUS_BYTES) -> tuple[Path, BuildReport]:
    """Write a text and make a dataset of tokens of it, ``corpus.txt``, ``corpus.bin`` and ``corpus.idx``.

    Args:
        folder: Where to.
        num_bytes: Of the text [bytes].

    Returns:
        What `open_tokens` opens, and what was built.
    """
    text, tokens = folder / "corpus.txt", folder / "corpus"
    text.write_bytes(_read_text(num_bytes))
    return tokens, build_tokens([text], tokens, split_on=BLANK_LINES)


def _read_text(num_bytes: int) -> bytes:
    """The first bytes of the standard library's packages, file after file by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*.py"))
    text = b""
    for name in names:
        if "-packages/" not in name and len(text) < num_bytes:
            text += (root / name).read_bytes()
    return text[:num_bytes]

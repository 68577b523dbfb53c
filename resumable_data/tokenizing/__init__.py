"""Texts to tokens: files of documents become a dataset that `resumable_data.open_tokens` opens."""

from resumable_data.tokenizing.build import BuildReport, build_tokens
from resumable_data.tokenizing.byte_tokenizer import ByteTokenizer
from resumable_data.tokenizing.huggingface import HuggingFaceTokenizer
from resumable_data.tokenizing.protocol import Tokenizer, TokenizerName, Tokens
from resumable_data.tokenizing.splitting import parse_separator

__all__ = [
    "BuildReport",
    "ByteTokenizer",
    "HuggingFaceTokenizer",
    "Tokenizer",
    "TokenizerName",
    "Tokens",
    "build_tokens",
    "parse_separator",
]

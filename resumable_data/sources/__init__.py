"""Where tokens live: documents in files and arrays, read-only, with every header and offset checked before use."""

from resumable_data.sources.arrow import ArrowTokens
from resumable_data.sources.base import FlatBase, SourceBase
from resumable_data.sources.fingerprint import FingerprintChange, compare_fingerprints, content_fingerprint
from resumable_data.sources.flat import open_array, open_npy, open_raw
from resumable_data.sources.megatron import MegatronTokens
from resumable_data.sources.offsets import OffsetTokens
from resumable_data.sources.open import open_tokens
from resumable_data.sources.parquet import ParquetTokens
from resumable_data.sources.protocol import FlatTokens, TokenArray, TokenSource

__all__ = [
    "ArrowTokens",
    "FingerprintChange",
    "FlatBase",
    "FlatTokens",
    "MegatronTokens",
    "OffsetTokens",
    "ParquetTokens",
    "SourceBase",
    "TokenArray",
    "TokenSource",
    "compare_fingerprints",
    "content_fingerprint",
    "open_array",
    "open_npy",
    "open_raw",
    "open_tokens",
]

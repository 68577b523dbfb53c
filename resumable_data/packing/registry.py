"""From a description in a recipe back to the policy."""

from __future__ import annotations

from collections.abc import Mapping

from resumable_data.errors import UsageError
from resumable_data.packing.policies import BestFit, Concat, Fill, NoPacking, Policy

OUR_POLICIES: tuple[type[BestFit] | type[Fill] | type[Concat] | type[NoPacking], ...] = (
    BestFit,
    Fill,
    Concat,
    NoPacking,
)
_CLASSES = {cls.kind: cls for cls in OUR_POLICIES}


def policy_from_description(description: Mapping[str, int | str]) -> Policy:
    """Rebuild one of this package's policies from what its ``describe()`` returned.

    Args:
        description: as returned by ``describe()``; it may come from a file and is not trusted. Other keys than a
            policy's own are refused.

    Raises:
        UsageError: when the kind or version is unknown, a key is missing or unknown, or a value is not one that the
            policy describes itself with.

    Example:
        >>> policy_from_description({"kind": "fill", "version": 1, "threshold": "0.99"})
        Fill(threshold=0.99)
    """
    if not isinstance(description, Mapping):
        raise UsageError(
            f"a packing policy's description must be a mapping; found {type(description).__name__}. The policy cannot"
            " be rebuilt from it. Pass what policy.describe() returned."
        )
    kind, version = description.get("kind"), description.get("version")
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise UsageError(
            f"a packing policy's kind must be one of {', '.join(sorted(_CLASSES))}; found {kind!r}. Its rows cannot be"
            " planned again. Pass what policy.describe() returned, or the policy itself where it is your own."
        )
    cls = _CLASSES[kind]
    if type(version) is not int or version != cls.version:
        raise UsageError(
            f"packing policy {kind!r} must have version {cls.version}; found {version!r}. Another"
            " version packs other rows. Use the release of resumable_data that wrote it."
        )
    policy = _rebuilt(description)
    if policy is None or policy.describe() != dict(description):
        raise UsageError(
            f"a description of packing policy {kind!r} must look like {cls().describe()}; found {dict(description)}."
            " It may mean other rows. Pass what policy.describe() returned, whole."
        )
    return policy


def _rebuilt(description: Mapping[str, int | str]) -> Policy | None:
    """The policy that these arguments make, or None; whether it describes itself alike is for the caller to see."""
    kind = description["kind"]
    if kind == Concat.kind:
        return Concat()
    if kind == Fill.kind:
        try:
            return Fill(float(description.get("threshold", "")))
        except (ValueError, TypeError):  # UsageError is a ValueError
            return None
    truncate = description.get("truncate") == 1
    return BestFit(truncate) if kind == BestFit.kind else NoPacking(truncate)

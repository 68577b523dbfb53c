"""What a check of a checkpoint can find."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from resumable_data.findings import MISSING_EVIDENCE, NOTE, VIOLATION, WARNING, Kind, PlainFinding
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

SOUND = "sound"
DAMAGED = "damaged"
UNPROVEN = "unproven"

MAX_FINDINGS_PER_CODE = 50

_EARLIER = "Load an earlier checkpoint, or restore the file from a copy."
_MIXED = (
    "Load an earlier checkpoint. Save each into a new directory: one that is written over another mixes both where a "
    "rank dies."
)

KINDS = {
    "RD801": Kind(
        VIOLATION,
        "no .metadata: the save never finished, or the file was deleted",
        "Load an earlier checkpoint. Where .metadata.tmp lies beside it, the save died while replacing an older one.",
    ),
    "RD802": Kind(VIOLATION, ".metadata is damaged", _EARLIER),
    "RD803": Kind(
        VIOLATION,
        ".metadata names code that no checkpoint needs, and loading it would run that code",
        "Do not load this checkpoint. Find out who wrote it.",
    ),
    "RD804": Kind(
        MISSING_EVIDENCE, "the metadata lies in one file per rank, which is not read", "Save with collectives."
    ),
    "RD805": Kind(
        MISSING_EVIDENCE,
        "files of safetensors, which record no checksums, nor that they are all there",
        "Save with DCP's own writer, or save_checkpoint(), to have it checked. Compare copies with a list of SHA-256 "
        "that was made after the save.",
    ),
    "RD806": Kind(
        MISSING_EVIDENCE,
        "no checkpoint of torch.distributed.checkpoint: what should be in it is not known",
        "Name the directory that was saved to: the one with .metadata in it.",
    ),
    "RD811": Kind(
        VIOLATION, "chunks do not cover the whole tensor: its rest would keep the program's values", _EARLIER
    ),
    "RD812": Kind(VIOLATION, "chunks overlap", _EARLIER),
    "RD813": Kind(VIOLATION, "a chunk lies outside its tensor", _EARLIER),
    "RD814": Kind(VIOLATION, "a chunk or object has no storage entry", _EARLIER),
    "RD815": Kind(VIOLATION, "a storage entry belongs to no chunk or object", _EARLIER),
    "RD816": Kind(VIOLATION, "several storage entries for one chunk or object", _EARLIER),
    "RD817": Kind(VIOLATION, "the nested state and the flat keys do not name the same things", _EARLIER),
    "RD818": Kind(
        MISSING_EVIDENCE, "a tensor is cut too irregularly to check its cover", "Save it with fewer kinds of cuts."
    ),
    "RD821": Kind(VIOLATION, "a data file is missing", _EARLIER),
    "RD822": Kind(VIOLATION, "a data file is shorter than its items", _EARLIER),
    "RD823": Kind(VIOLATION, "a data file goes on after its last item: it belongs to another save, or grew", _MIXED),
    "RD824": Kind(VIOLATION, "items of a data file overlap, or leave a gap", _EARLIER),
    "RD825": Kind(VIOLATION, "a data file whose name leads out of the checkpoint", "Do not load this checkpoint."),
    "RD826": Kind(VIOLATION, "a data file cannot be read", _EARLIER),
    "RD827": Kind(
        NOTE, "a file that .metadata does not name", "None needed; of an overwritten checkpoint it stays behind."
    ),
    "RD828": Kind(
        NOTE,
        "a temporary file: a save died here, or is running",
        "Delete it when no save into this directory is running.",
    ),
    "RD829": Kind(
        NOTE, "a data file is a symbolic link", "Make sure that what it leads to is kept as long as the rest."
    ),
    "RD831": Kind(VIOLATION, "an item is no whole archive", _EARLIER),
    "RD832": Kind(VIOLATION, "an item's pickle is damaged", _EARLIER),
    "RD833": Kind(VIOLATION, "an item is not the tensor that .metadata describes", _MIXED),
    "RD834": Kind(VIOLATION, "an item has too few bytes for its tensor", _EARLIER),
    "RD835": Kind(
        WARNING,
        "a pickled object names code that runs when it is loaded",
        "Load it only where you trust whoever wrote it; torch.load(weights_only=True) refuses it.",
    ),
    "RD836": Kind(
        MISSING_EVIDENCE, "items are stored in a form that is not read", "Save without storage transforms (extensions)."
    ),
    "RD841": Kind(VIOLATION, "contents do not have the checksum that was recorded when they were saved", _EARLIER),
    "RD842": Kind(
        MISSING_EVIDENCE,
        "no checksums were recorded, so that contents cannot be checked",
        "Leave torch.serialization.set_crc32_options(True), its default; or check with --level directory.",
    ),
    "RD843": Kind(VIOLATION, "a tensor does not have the digest that was taken before it was saved", _EARLIER),
    "RD851": Kind(
        NOTE,
        "no manifest: whether all files are of one save is not known",
        "None needed; a checkpoint of save_checkpoint() has one.",
    ),
    "RD852": Kind(VIOLATION, "the manifest is damaged", _EARLIER),
    "RD853": Kind(VIOLATION, ".metadata is not that of the manifest: files of two saves, or a damaged one", _MIXED),
    "RD854": Kind(VIOLATION, "keys, shapes or dtypes are not those of the manifest", _MIXED),
    "RD855": Kind(VIOLATION, "data files are not those of the manifest", _MIXED),
    "RD856": Kind(VIOLATION, "an item is of another save than the manifest", _MIXED),
    "RD857": Kind(VIOLATION, "the run manifest is not the one that was saved", _MIXED),
    "RD858": Kind(VIOLATION, "the probe's logits are not those that were saved", _MIXED),
    "RD861": Kind(VIOLATION, "the cursor is damaged", _EARLIER),
    "RD862": Kind(VIOLATION, "the cursor is not that of the manifest", _MIXED),
    "RD863": Kind(VIOLATION, "a file of the SHA-256 list is missing", "Copy it again, or restore it from a copy."),
    "RD864": Kind(
        MISSING_EVIDENCE,
        "a file that the SHA-256 list does not name, so that nothing vouches for it",
        "Find out where it came from; delete it, or make the list again.",
    ),
    "RD865": Kind(
        VIOLATION, "a file does not have the SHA-256 of the list", "Copy it again, or restore it from a copy."
    ),
    "RD871": Kind(
        NOTE,
        "a file of one process: it holds what that process saved, and loads whole into memory",
        "Of a sharded model, check the files of all ranks; torch.load(mmap=True) loads less at once.",
    ),
}

_RANK = re.compile(r"__(\d{1,9})_\d{1,9}\.distcp", re.ASCII)


class CheckpointFinding(PlainFinding, frozen=True, kw_only=True):
    """One thing that a check of a checkpoint found.

    Attributes:
        file: The file concerned, in the checkpoint's directory; empty where it is about none.
        rank: The rank that wrote it, by its name; None where that does not say.
        key: Flat key of the tensor or object concerned; empty where it is about none.
        offset: The byte of the file where it is; None where it is about no place.
        count: How many the same is found of.
    """

    file: str = ""
    rank: int | None = None
    key: str = ""
    offset: int | None = None
    count: int = 1


class Findings:
    """Gathers findings: of each code the first ones, and the number of the others.

    Attributes:
        found: The findings that are kept.
        omitted: Code to the number of findings that are not.
    """

    def __init__(self) -> None:
        self.found: list[CheckpointFinding] = []
        self.omitted: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()

    def add(
        self,
        code: str,
        *,
        expected: str,
        found: str,
        file: str = "",
        key: str = "",
        offset: int | None = None,
        count: int = 1,
    ) -> None:
        """Note a finding of a kind."""
        if self._kept[code] == MAX_FINDINGS_PER_CODE:
            self.omitted[code] += 1
            return
        self._kept[code] += 1
        rank = _RANK.fullmatch(file)
        where = ", ".join(
            part for part in (shown(file), shown(key), "" if offset is None else f"byte {offset}") if part
        )
        self.found.append(
            CheckpointFinding(
                code=code,
                where=where or "the checkpoint",
                expected=shown(expected),
                found=shown(found),
                file=shown(file),
                rank=int(rank[1]) if rank else None,
                key=shown(key),
                offset=offset,
                count=count,
                **KINDS[code]._asdict(),
            )
        )

    def sorted(self) -> tuple[CheckpointFinding, ...]:
        """Those that are kept, violations first."""
        return tuple(sorted(self.found, key=lambda one: one.precedence))

    def has(self, *codes: str) -> bool:
        """Whether anything of these kinds was found."""
        return any(self._kept[code] for code in codes)


def judge_checkpoint(findings: Iterable[CheckpointFinding]) -> str:
    """The verdict that findings lead to."""
    severities = {finding.severity for finding in findings}
    if VIOLATION in severities:
        return DAMAGED
    return UNPROVEN if MISSING_EVIDENCE in severities else SOUND

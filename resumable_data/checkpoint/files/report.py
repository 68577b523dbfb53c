"""What a check of a checkpoint says."""

from __future__ import annotations

import msgspec

from resumable_data.checkpoint.files.findings import DAMAGED, SOUND, CheckpointFinding
from resumable_data.cursor import Cursor

SCHEMA_VERSION = 1
LEVELS = ("structure", "directory", "payload")
_EXPLAINED = {
    SOUND: "nothing is missing, cut or changed, as far as was looked",
    DAMAGED: "do not load it",
    "unproven": "nothing is wrong, and not all that was asked for could be checked",
}
_NOT_CHECKED = {
    "safetensors": "a checkpoint in files of safetensors: whether it is whole and unchanged cannot be known",
    "other": "no checkpoint of torch.distributed.checkpoint: nothing in it was checked",
}
_LOOKED = {
    "structure": "structure: metadata, chunks and sizes of files; no data file was read",
    "directory": "directory: structure, and the directory of each item; no contents were read",
    "payload": "payload: structure, directories, and the checksums of all contents",
}


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of a checkpoint's files says. `to_json` and `to_text` show it.

    Attributes:
        subject: ``"dcp"``: a directory of DCP. ``"torch.save"``: a single file. ``"safetensors"``, ``"other"``: a
            directory of something else, of which nothing is checked.
        path: What was checked.
        level: How far it was asked to look: ``"structure"``, ``"directory"`` or ``"payload"``.
        verdict: ``"sound"``: nothing found that matters. ``"damaged"``: do not load it. ``"unproven"``: nothing is
            wrong, and not all that was asked for could be checked.
        tensors: Tensors in it.
        objects: Python objects in it; of a single file 0, as they are not told apart.
        items: Archives in it.
        files: Data files.
        tensor_bytes: Size of all tensors [bytes].
        host_bytes: Of a single file, the memory that `torch.load` takes for it, as it reads all of it [bytes]; else 0.
        checksums: Whether torch recorded CRC32s: ``"recorded"``, ``"partly"``, ``"not recorded"``, or ``"not read"``
            where no archive was looked into.
        checked_bytes: Contents whose checksum was compared [bytes].
        crc_library: What computed checksums; empty where nothing did.
        has_manifest: Whether it has a manifest, with which it was compared.
        sha256_files: Files whose SHA-256 was that of the list given; None where none was given.
        cursors: Flat key to cursor, of those that could be read.
        findings: What was found, violations first; of each code at most 50.
        omitted: Code to the number of findings that are not listed.
    """

    subject: str
    path: str
    level: str
    verdict: str
    tensors: int = 0
    objects: int = 0
    items: int = 0
    files: int = 0
    tensor_bytes: int = 0
    host_bytes: int = 0
    checksums: str = "not read"
    checked_bytes: int = 0
    crc_library: str = ""
    has_manifest: bool = False
    sha256_files: int | None = None
    cursors: dict[str, Cursor] = {}
    findings: tuple[CheckpointFinding, ...] = ()
    omitted: dict[str, int] = {}
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 where the verdict is ``"sound"``, else 1."""
        return 0 if self.verdict == SOUND else 1

    @property
    def reason(self) -> str:
        """The worst finding in a line; empty where the verdict is ``"sound"``."""
        if self.verdict == SOUND or not self.findings:
            return ""
        worst = self.findings[0]
        return f"{worst.code} {worst.title} ({worst.where}: expected {worst.expected}, found {worst.found})"

    def to_json(self) -> bytes:
        """The report as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """The report for people."""
        lines = [f"{self.verdict.upper()}: {_EXPLAINED[self.verdict]}", ""]
        lines += [f"  {name:<10} {value}" for name, value in _counts(self)]
        for finding in self.findings:
            lines += ["", *_finding(finding)]
        for code, number in sorted(self.omitted.items()):
            lines += ["", f"{code}: and {number} more"]
        return "\n".join(lines)


def _counts(report: CheckpointReport) -> list[tuple[str, str]]:
    if report.subject in _NOT_CHECKED:
        return [("directory", report.path), ("is", _NOT_CHECKED[report.subject]), *_sha256(report)]
    what = "checkpoint" if report.subject == "dcp" else "file"
    objects = f", {report.objects} objects" if report.subject == "dcp" else ""
    counts = [
        (what, report.path),
        ("looked at", _LOOKED[report.level]),
        ("holds", f"{report.tensors} tensors{objects}, {format_bytes(report.tensor_bytes)}, in {report.files} files"),
    ]
    if report.host_bytes:
        counts.append(("to load", f"{format_bytes(report.host_bytes)} of memory in one process"))
    counts.append(("checksums", _checksums(report)))
    if report.subject == "dcp":
        counts.append(("manifest", "compared" if report.has_manifest else "none"))
    counts += _sha256(report)
    for key, cursor in sorted(report.cursors.items()):
        counts.append(("cursor", f"{key}: update {cursor.updates}, position {cursor.position}, epoch {cursor.epoch}"))
    return counts


def _sha256(report: CheckpointReport) -> list[tuple[str, str]]:
    return [] if report.sha256_files is None else [("SHA-256", f"{report.sha256_files} files are as listed")]


def _checksums(report: CheckpointReport) -> str:
    if report.level != "payload" or not report.checked_bytes:
        return report.checksums
    return f"{report.checksums}, {format_bytes(report.checked_bytes)} compared with {report.crc_library}"


def format_bytes(number: int) -> str:
    """A size for people: ``"1.5 MB"``."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} bytes"


def _finding(finding: CheckpointFinding) -> list[str]:
    times = f" ({finding.count})" if finding.count > 1 else ""
    return [
        f"{finding.code} {finding.severity}: {finding.title}{times}",
        f"  where     {finding.where}",
        f"  expected  {finding.expected}",
        f"  found     {finding.found}",
        f"  remedy    {finding.remedy}",
    ]

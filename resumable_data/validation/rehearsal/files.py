"""The first stage: whether a checkpoint is complete. It needs no torch, no device and no process group."""

from __future__ import annotations

from pathlib import Path

from resumable_data.checkpoint.files.report import CheckpointReport
from resumable_data.checkpoint.files.verify import verify_checkpoint
from resumable_data.checkpoint.migration.migration_file import MigrationManifest
from resumable_data.checkpoint.migration.source import Source, read_source
from resumable_data.checkpoint.run_manifest import RunManifest, read_run_manifest
from resumable_data.errors import CheckpointError
from resumable_data.findings import PlainFinding
from resumable_data.validation.checks import FAILED, PASSED, UNPROVEN, Check
from resumable_data.validation.verdict_findings import finding

_STATUS = {"sound": PASSED, "damaged": FAILED}


def check_files(checkpoint: Path, level: str = "payload", migration: MigrationManifest | None = None) -> list[Check]:
    """The checks of the first stage.

    Args:
        checkpoint: The checkpoint's directory.
        level: How far its files are read, see `verify_checkpoint`.
        migration: The move that was declared.

    Raises:
        CheckpointError: There is nothing that could be a checkpoint.
    """
    report = verify_checkpoint(checkpoint, level)
    checks = [_check_report(report)]
    if checks[0].status == FAILED:
        return checks
    checks.append(_check_manifest(checkpoint, report))
    if migration is not None and checks[1].status != FAILED:
        checks.append(_check_migration(read_source(checkpoint), migration))
    return checks


def _check_report(report: CheckpointReport) -> Check:
    summary = f"{report.verdict}: {report.tensors} tensors in {report.files} files, level {report.level}"
    status = _STATUS.get(report.verdict, UNPROVEN) if report.subject == "dcp" else FAILED
    if status == FAILED and not report.findings:
        unknown = finding("RD972", report.path, expected="a directory of DCP", found=report.subject)
        return Check.of("files", status, summary, [unknown])
    return Check.of("files", status, summary, report.findings)


def _check_manifest(checkpoint: Path, report: CheckpointReport) -> Check:
    """Whether what a move has to keep is known: the program, its batch, its ranks and where it is in the data."""
    try:
        run = read_run_manifest(checkpoint)
    except CheckpointError as error:
        return Check.of("manifest", FAILED, "not read", [_unknown("a run manifest", str(error))])
    missing = [] if report.has_manifest else [_unknown("a manifest", "none")]
    if run is None:
        missing.append(_unknown("a run manifest", "none"))
        return Check.of("manifest", UNPROVEN, "none", missing)
    facts = {"batch": run.batch is not None, "mesh": bool(run.mesh.axes), "cursor": bytes(run.cursor) != b"null"}
    missing += [_unknown(f"the {name}", "none") for name, is_known in facts.items() if not is_known]
    return Check.of("manifest", UNPROVEN if missing else PASSED, describe(run), missing)


def _check_migration(source: Source, migration: MigrationManifest) -> Check:
    """Whether a migration was made for this checkpoint."""
    declared = ", ".join(f"{one.field} {one.saved} to {one.now}" for one in migration.needed)
    summary = f"{migration.xxh3}: {declared or 'nothing that needs a declaration'}"
    if migration.identity == source.identity:
        return Check.of("migration", PASSED, summary)
    wanted, given = (
        f"save {nonce or 'unknown'} of run {run_id or 'unknown'}, update {update}"
        for nonce, run_id, update in (source.identity, migration.identity)
    )
    return Check.of("migration", FAILED, summary, [finding("RD979", "migration", expected=wanted, found=given)])


def describe(run: RunManifest) -> str:
    """Where a run stands, in a line."""
    cursor = run.decode_cursor()
    axes = " x ".join(f"{name} {size}" for name, size in run.mesh.axes) or "unknown ranks"
    place = "" if cursor is None else f", update {cursor.updates}, position {cursor.position}"
    batch = "" if run.batch is None else f", global batch {run.batch.global_batch} {run.batch.unit}"
    return f"saved on {axes}{place}{batch}"


def _unknown(expected: str, found: str) -> PlainFinding:
    return finding("RD974", "manifest", expected=expected, found=found)

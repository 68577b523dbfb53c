"""Verdicts: what checks lead to, what reports lead to, and what a record of it says."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.audit.report import AuditReport, Bounds
from resumable_data.checkpoint.migration.declaration import Continuity, Declaration
from resumable_data.checkpoint.migration.migration_file import plan_migration
from resumable_data.checkpoint.run_manifest import BatchInfo, RunManifest
from resumable_data.ledger.records import Mesh
from resumable_data.validation.checks import CHECKS, Check
from resumable_data.validation.comparison import Compared, TraceComparison, TracedRun
from resumable_data.validation.findings import KINDS as TRACES
from resumable_data.validation.findings import TraceFinding
from resumable_data.validation.judging import check_of_state, judge_move
from resumable_data.validation.state_findings import KINDS as STATES
from resumable_data.validation.state_findings import state_finding
from resumable_data.validation.state_report import StateReport, judge_state
from resumable_data.validation.verdict import Verdict, judge_checks, make_verdict
from resumable_data.validation.verdict_findings import KINDS, finding
from tests.runs import make_run, write_checkpoint

DOCS = Path(__file__).parents[3] / "docs"
STATUSES = ("passed", "failed", "warm start", "unproven", "not run")
REQUIRED = ("state", "batch", "trace", "coverage")


@given(st.dictionaries(st.sampled_from(sorted(CHECKS)), st.sampled_from(STATUSES)))
def test_verdict_of_any_checks(statuses: dict[str, str]) -> None:
    """A failure rejects, else a warm start is one, and nothing is promoted without all that it needs."""
    checks = [Check.of(name, status, "") for name, status in statuses.items()]
    values = set(statuses.values())
    if "failed" in values:
        expected = "reject"
    elif "warm start" in values:
        expected = "warm start"
    elif "unproven" in values or any(statuses.get(name) != "passed" for name in REQUIRED):
        expected = "unproven"
    else:
        expected = "promote"
    assert judge_checks(checks) == expected
    verdict = make_verdict("c", checks, declaration=Declaration())
    assert (verdict.verdict, verdict.exit_code) == (expected, 0 if expected == "promote" else 1)
    assert (verdict.warm_start is not None) == (expected == "warm start")
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert verdict.to_text().startswith(expected.upper())


def test_a_part_is_never_a_promotion() -> None:
    """What was asked for only in part may pass, with exit code 0, and says that it is no verdict on the move."""
    checks = [Check.of(name, "passed", "") for name in CHECKS]
    assert make_verdict("c", checks, declaration=Declaration()).verdict == "promote"
    part = make_verdict("c", checks, declaration=Declaration(), is_part=True)
    assert (part.verdict, part.exit_code) == ("passed", 0)
    assert "no verdict on the move" in part.to_text()


RUN = RunManifest(
    world_size=4,
    mesh=Mesh((("dp", 2), ("tp", 2)), ("dp",)),
    batch=BatchInfo(
        global_batch=12, unit="samples", microbatch=3, dp_size=2, accumulation_steps=2, invariant="samples"
    ),
)
STATE = StateReport(path="c", verdict="complete", tensors=3, values=2, findings=())
_TRACED = TracedRun(
    path="t", run_id="0" * 16, num_replicas=2, axes=(), dtype="float32", samples_per_s=None, samples_per_device_s=None
)
TRACE = TraceComparison(
    verdict="pass",
    control=_TRACED,
    candidate=_TRACED,
    repeats=2,
    first_update=5,
    updates=20,
    quantities=tuple(
        Compared(
            name=name,
            largest=1e-7,
            at_update=5,
            first=0.0,
            limit=7.6e-6,
            limit_source="repeats",
            noise=0.0,
            first_excess=None,
            excesses=0,
        )
        for name in ("loss", "gradient_norm")
    ),
)
AUDIT = AuditReport(
    subject="cursor",
    path="",
    verdict="proven",
    run_id="0" * 16,
    updates=25,
    skipped=0,
    position=300,
    epoch=0,
    offset=300,
    samples=300,
    padding=0,
    dropped=0,
    replayed=Bounds(0, 0),
    omitted=Bounds(0, 0),
)


def violated(code: str, key: str) -> StateReport:
    findings = (state_finding(code, [key], expected="a", found="b"),)
    return msgspec.structs.replace(STATE, verdict=judge_state(findings), findings=findings)


def batch(size: int) -> RunManifest:
    assert RUN.batch is not None
    return msgspec.structs.replace(RUN, batch=msgspec.structs.replace(RUN.batch, global_batch=size))


def test_good_reports_promote_and_the_topology_is_recorded() -> None:
    """With all axes of the mesh, the data-parallel size, the invariant, the batch and the tolerances."""
    declaration = Declaration(continuity=Continuity(kind="bounded", replayed=3), invariant="tokens")
    verdict = judge_move("c", state=STATE, saved=RUN, now=RUN, trace=TRACE, audit=AUDIT, declaration=declaration)
    assert verdict.verdict == "promote"
    assert verdict.now is not None
    assert (verdict.now.axes, verdict.now.dp_size, verdict.now.world_size) == ((("dp", 2), ("tp", 2)), 2, 4)
    assert verdict.tolerances == {"loss": 7.6e-6, "gradient_norm": 7.6e-6}
    assert (verdict.batch, verdict.declaration) == (RUN.batch, declaration)
    text = verdict.to_text()
    assert "dp 2 x tp 2: 4 processes, 2 data-parallel ranks" in text
    assert "the same tokens; data continuity bounded, 3 replayed and 0 omitted" in text
    assert "12 samples on 2 data-parallel ranks, 2 microbatches per rank of 3" in text
    for what in ("final convergence", "throughput", "a material change of the global batch"):
        assert what in text


def test_each_report_decides() -> None:
    """Each of state, batch, data and trace can reject by itself, or leave the move unproven, by its named check."""
    lost = violated("RD946", "optimizer.state.a.exp_avg")
    deviates = msgspec.structs.replace(TRACE, verdict="deviates")
    hidden = msgspec.structs.replace(TRACE, verdict="not distinguishable")
    replayed = msgspec.structs.replace(AUDIT, replayed=Bounds(2, 2))
    cases: list[tuple[dict[str, object], str, str]] = [
        ({"state": lost}, "reject", "state"),
        ({"state": violated("RD954", "rng")}, "unproven", "state"),
        ({"now": batch(6)}, "reject", "batch"),
        ({"saved": None}, "unproven", "batch"),
        ({"trace": deviates}, "reject", "trace"),
        ({"trace": hidden}, "unproven", "trace"),
        ({"trace": None}, "unproven", "trace"),
        ({"audit": msgspec.structs.replace(AUDIT, verdict="violated")}, "reject", "coverage"),
        ({"audit": msgspec.structs.replace(AUDIT, verdict="unproven")}, "unproven", "coverage"),
        ({"audit": replayed}, "reject", "coverage"),
        ({"audit": None}, "unproven", "coverage"),
    ]
    for changes, expected, name in cases:
        arguments = {"state": STATE, "saved": RUN, "now": RUN, "trace": TRACE, "audit": AUDIT, **changes}
        verdict = judge_move("c", **arguments)  # type: ignore[arg-type]  # of kinds that differ by name
        assert verdict.verdict == expected, changes
        # no trace tells what another batch does
        also = ["trace"] if name == "batch" and verdict.verdict == "reject" else []
        assert [one.name for one in verdict.checks if one.status != "passed"] == [name, *also], changes


def test_another_batch_is_never_promoted_by_a_trace() -> None:
    """Allowed by name it passes the checks of state and batch; that the trace is a control's proves no quality."""
    report = violated("RD956", "global batch")
    other = msgspec.structs.replace(
        TRACE,
        verdict="deviates",
        findings=(TraceFinding.about("RD909", "counts of update 5", expected="(12, None)", found="(6, None)"),),
    )
    for trace, shown in ((TRACE, "pass: "), (other, "not compared: "), (None, "no control")):
        verdict = judge_move(
            "c", state=report, saved=RUN, now=batch(6), trace=trace, audit=AUDIT, allow=["global_batch"]
        )
        assert verdict.verdict == "unproven"
        assert [one.name for one in verdict.checks if one.status != "passed"] == ["trace"]
        check = verdict.check("trace")
        assert check is not None
        assert check.summary.startswith(shown)
        assert "RD980" in {one.code for one in check.findings}
        assert verdict.not_proven[2].startswith("what a global batch of 6 samples, where it was 12 samples, does")
    same = judge_move("c", state=STATE, saved=RUN, now=RUN, trace=other, audit=AUDIT)
    assert same.verdict == "reject"
    apart = msgspec.structs.replace(TRACE, verdict="deviates")
    faulty = judge_move("c", state=report, saved=RUN, now=batch(6), trace=apart, audit=AUDIT, allow=["global_batch"])
    assert [one.name for one in faulty.failed] == ["trace"]


def test_a_migration_is_held_against_reports(tmp_path: Path) -> None:
    """What it declares survives, its destination's batch and ranks are expected, and its checksum is recorded."""
    saved, now = (make_run(axes=axes) for axes in ((("dp", 2), ("tp", 2)), (("dp", 4),)))
    declaration = Declaration(tolerances={"loss": 1e-5})
    folder = write_checkpoint(tmp_path / "c", saved)
    migration = plan_migration(folder, now, declaration=declaration)
    arguments = {"state": STATE, "saved": saved, "trace": TRACE, "audit": AUDIT, "migration": migration}
    verdict = judge_move("c", now=now, **arguments)  # type: ignore[arg-type]  # of kinds that differ by name
    assert (verdict.verdict, verdict.declaration, verdict.migration_xxh3) == ("promote", declaration, migration.xxh3)
    assert [one.values for one in verdict.changes] == [("dp", 2, 4), ("mesh.tp", 2, 1)]
    for axes in ((("dp", 2),), (("dp", 4), ("tp", 2))):
        elsewhere = judge_move("c", now=make_run(axes=axes), **arguments)  # type: ignore[arg-type]
        assert [one.code for check in elsewhere.failed for one in check.findings] == ["RD989"]
    undeclared = judge_move("c", now=now, **{**arguments, "migration": None})  # type: ignore[arg-type]
    assert [(check.name, check.findings[0].code) for check in undeclared.failed] == [("load", "RD972")]
    assert "resumable-data plan c --mesh dp=4 --data-axes dp -o migration.json" in undeclared.to_text()
    assert judge_move("c", now=now, **{**arguments, "migration": None}, allow={"mesh"}).verdict == "promote"  # type: ignore[arg-type]
    later = make_run(axes=(("dp", 2), ("tp", 2)), updates=6)
    other = judge_move("c", now=now, **{**arguments, "saved": later})  # type: ignore[arg-type]
    assert [one.code for check in other.failed for one in check.findings] == ["RD979"]


def test_declared_replays_are_no_failure() -> None:
    """As many replayed samples as were declared."""
    replayed = msgspec.structs.replace(AUDIT, replayed=Bounds(2, 2))
    for bound, expected in ((2, "promote"), (1, "reject")):
        declaration = Declaration(continuity=Continuity(kind="bounded", replayed=bound))
        verdict = judge_move("c", state=STATE, saved=RUN, now=RUN, trace=TRACE, audit=replayed, declaration=declaration)
        assert verdict.verdict == expected


def test_a_cast_must_be_declared() -> None:
    """The state is whole, in another dtype: that is a finding of the state unless it is allowed by name."""
    cast = state_finding("RD944", ["model.weight"], expected="float32", found="bfloat16")
    report = msgspec.structs.replace(STATE, findings=(cast,))
    assert check_of_state(report).status == "failed"
    assert "nobody declared" in check_of_state(report).summary
    assert check_of_state(report, {"dtype"}).status == "passed"


def test_a_warm_start_gets_an_identity_and_a_record() -> None:
    """Weights that are whole with a new optimizer: what was lost is listed, under an identity drawn for it."""
    report = violated("RD950", "optimizer")
    first, second = (judge_move("c", state=report, saved=RUN, now=RUN, trace=None, audit=AUDIT) for _ in range(2))
    assert first.verdict == "warm start"
    assert first.warm_start is not None
    assert second.warm_start is not None
    assert first.warm_start.identity != second.warm_start.identity
    assert len(first.warm_start.identity) == 16
    (lost,) = first.warm_start.lost
    assert lost.startswith("optimizer: a warm start")
    assert lost in first.to_text()


def test_kinds_have_codes_of_their_own() -> None:
    """No code is that of another table."""
    for one, other in itertools.combinations((KINDS, TRACES, STATES), 2):
        assert not one.keys() & other.keys()


def test_each_kind_is_found_by_some_check() -> None:
    """No table lists what nothing finds: each code stands elsewhere in the package too."""
    package = DOCS.parent / "resumable_data"
    sources = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    for code in (*KINDS, *TRACES, *STATES):
        assert sum(text.count(f'"{code}"') for text in sources) > 1, code


def test_a_finding_is_shown_with_its_remedy() -> None:
    """And a traceback in it with all its lines."""
    one = finding("RD971", "rank 1", expected="no error", found="line 1\n  line 2")
    verdict = make_verdict("c", [Check.of("step", "failed", "s", [one])], declaration=Declaration())
    text = verdict.to_text()
    assert "  found     line 1\n              line 2\n" in text
    assert KINDS["RD971"].remedy in text
    assert verdict.failed == verdict.checks
    assert verdict.check("step") is not None
    assert verdict.check("trace") is None


def test_documentation_lists_what_a_check_of_the_state_finds() -> None:
    """The table in docs/validation.md is the table in the code, and lists nothing else."""
    page = (DOCS / "validation.md").read_text(encoding="utf-8")
    table = page[page.index("## Is the state there?") :]
    listed = [line for line in table.splitlines() if line.startswith("| RD")]
    assert listed == [f"| {code} | {one.severity} | {one.title} | {one.remedy} |" for code, one in STATES.items()]


def test_documentation_lists_all_checks_and_kinds() -> None:
    """The tables in docs/rehearsal.md are those in the code."""
    page = (DOCS / "rehearsal.md").read_text(encoding="utf-8")
    for name, check in CHECKS.items():
        assert f"| `{name}` | {check.stage} | {check.asks} | {check.prevents} |" in page
    for code, kind in KINDS.items():
        assert f"| {code} | {kind.severity} | {kind.title} | {kind.remedy} |" in page

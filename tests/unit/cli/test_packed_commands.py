"""Commands on runs over packed rows: they are told the documents, and the recipe tells the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resumable_data import Cursor, Ledger, PackedTokens, ResumableLoader, open_tokens
from resumable_data.cli import main
from tests.packed_run_oracle import row_id

LENGTHS = np.random.default_rng(3).integers(0, 30, 60)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tokens.npy, lengths.npy, the ledgers of two runs on 2 ranks, and the first one's cursor."""
    folder = tmp_path_factory.mktemp("packed")
    np.save(folder / "tokens.npy", np.arange(LENGTHS.sum(), dtype=np.int32))
    np.save(folder / "lengths.npy", LENGTHS)
    for name, batch in (("a", {"global_batch": 6}), ("b", {"global_batch_tokens": 100})):
        cursor = train(folder, folder / name, batch)
        (folder / f"{name}.json").write_bytes(cursor.to_json())
    return folder


def train(folder: Path, ledger: Path | Ledger, batch: dict[str, Any]) -> Cursor:
    source = open_tokens(folder / "tokens.npy", lengths=LENGTHS)
    packed = PackedTokens(source, sequence_length=32, window=20)
    options: dict[str, Any] = {"microbatch": 2, "num_replicas": 2, "epochs": 2, "ledger": ledger, **batch}
    loaders = [ResumableLoader(packed, rank=rank, **options) for rank in range(2)]
    for updates in zip(*(loader.updates() for loader in loaders), strict=True):
        for update in updates:
            update.commit()
    cursor = loaders[0].check_agreement(peers=loaders)
    for loader in loaders:
        loader.close()
    return cursor


def call(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: object, tokens: bool = True) -> tuple[int, str]:
    source = ["--tokens", folder / "tokens.npy", "--lengths-file", folder / "lengths.npy"] if tokens else []
    code = main([str(part) for part in (*arguments, *source)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("what", [("a",), ("b",), ("--cursor", "a.json"), ("--cursor", "b.json")])
def test_audit_proves_rows_and_tokens(run: Path, what: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A ledger and a cursor are proven with nothing but the documents beside them; tokens are counted."""
    path = [*what[:-1], run / what[-1]]
    code, text = call(capsys, run, "audit", *path)
    assert code == 0, text
    assert "PROVEN" in text
    assert f"{2 * LENGTHS.sum()}, " in text
    code, text = call(capsys, run, "audit", *path, "--json")
    report = json.loads(text)
    assert (report["verdict"], report["packed"]["epoch"], report["packed"]["tokens"]) == (
        "proven",
        2,
        2 * LENGTHS.sum(),
    )
    assert report["packed"]["documents"] == 2 * np.count_nonzero(LENGTHS)


@pytest.mark.parametrize(
    "command", [("audit",), ("ledger", "show", "--document", "1"), ("ledger", "show", "--update", "1")]
)
def test_without_the_documents_nothing_is_said(
    run: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the option that is missing."""
    code, text = call(capsys, run, *command, run / "a", tokens=False)
    assert code == 2
    assert "--tokens SOURCE" in text


def test_other_documents_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What became of them is said, for a ledger and for a cursor."""
    np.save(run / "longer.npy", np.arange(LENGTHS.sum() + 5, dtype=np.int32))
    np.save(run / "other.npy", np.append(LENGTHS[:-1], LENGTHS[-1] + 5))
    for what in (["audit", run / "a"], ["audit", "--cursor", run / "a.json"]):
        arguments = [*what, "--tokens", run / "longer.npy", "--lengths-file", run / "other.npy"]
        code, text = call(capsys, run, *arguments, tokens=False)
        assert code == 2
        assert f"had {LENGTHS.sum()} tokens then, and have {LENGTHS.sum() + 5} now" in text


def test_a_source_that_needs_no_telling_alone_is_usage(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options of a source without one would be ignored, so they are refused."""
    code, text = call(capsys, run, "audit", run / "a", "--dtype", "uint16", tokens=False)
    assert (code, "give --tokens SOURCE too" in text) == (2, True)


def test_show_finds_a_document_in_its_rows(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every token of it, once an epoch, with who got the row."""
    document = int(np.argmax(LENGTHS))
    code, text = call(capsys, run, "ledger", "show", run / "a", "--document", document, "--json")
    found = json.loads(text)["deliveries"]
    held = [piece[1:] for one in found for piece in one["pieces"] if piece[0] == document]
    assert code == 0
    assert sorted(token for start, stop in held for token in range(start, stop)) == sorted(
        2 * list(range(LENGTHS[document]))
    )
    assert {one["epoch"] for one in found} == {0, 1}
    code, text = call(capsys, run, "ledger", "show", run / "a", "--document", document)
    assert f"{document}[0:" in text
    code, text = call(capsys, run, "ledger", "show", run / "a", "--document", 60)
    assert (code, "no document 60" in text) == (2, True)
    code, text = call(capsys, run, "ledger", "show", run / "a", "--sample", 3)
    assert (code, "look for a document" in text) == (2, True)


@pytest.fixture(scope="module")
def recorded(run: Path) -> Path:
    """The ledger of the first run once more, with pieces."""
    train(run, Ledger(run / "pieces", ids="full"), {"global_batch": 6})
    return run / "pieces"


def test_recorded_pieces_need_no_documents(run: Path, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a ledger holds is shown without planning: the same rows, but for their epochs."""
    for question in (["--document", 7], ["--update", 2]):
        code, text = call(capsys, run, "ledger", "show", recorded, *question, "--json", tokens=False)
        assert code == 0, text
        found = json.loads(text)["deliveries"]
        assert {one.pop("epoch") for one in found} == {None}
        code, text = call(capsys, run, "ledger", "show", run / "a", *question, "--json")
        planned = json.loads(text)["deliveries"]
        assert {one.pop("epoch") for one in planned} <= {0, 1}
        assert found == planned
        assert found
        code, text = call(capsys, run, "ledger", "show", recorded, *question, "--json")
        assert {one["epoch"] for one in json.loads(text)["deliveries"]} <= {0, 1}
    code, text = call(capsys, run, "ledger", "show", recorded, "--document", 7, tokens=False)
    assert (code, "row of " in text, "(epoch" in text) == (0, True, False)
    for wrong in (60, -1):
        code, text = call(capsys, run, "ledger", "show", recorded, "--document", wrong, tokens=False)
        assert (code, f"no document {wrong}" in text) == (2, True)
    code, text = call(capsys, run, "ledger", "diff", recorded, recorded, tokens=False)
    assert (code, "the same" in text) == (0, True)
    code, text = call(capsys, run, "audit", recorded, tokens=False)
    assert (code, "--tokens SOURCE" in text) == (2, True)
    code, text = call(capsys, run, "audit", recorded)
    assert (code, "rows recorded, and held against the documents" in text) == (0, True)


def test_export_writes_recorded_pieces(run: Path, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into files that have room for them, as they lie in the rows; IDs are their hashes."""
    for name in ("rows.jsonl", "rows.parquet", "rows.npy"):
        code, text = call(capsys, run, "ledger", "export", recorded, "--output", run / name, tokens=False)
        assert code == 0, text
    rows = [json.loads(line) for line in (run / "rows.jsonl").read_text().splitlines()]
    source = open_tokens(run / "tokens.npy", lengths=LENGTHS)
    packed = PackedTokens(source, sequence_length=32, window=20)
    wanted = [[list(piece) for piece in row.pieces] for epoch in range(2) for row in packed.rows(epoch)]
    assert [row["pieces"] for row in sorted(rows, key=lambda row: row["position"])] == wanted
    assert [row["id"] for row in rows] == [row_id(row["pieces"]) for row in rows]
    assert np.load(run / "rows.npy")["id"].tolist() == [row["id"] for row in rows]
    table = pytest.importorskip("pyarrow.parquet").read_table(run / "rows.parquet").to_pylist()
    assert [[list(piece.values()) for piece in row["pieces"]] for row in table] == [row["pieces"] for row in rows]


def test_launches_are_listed_without_documents(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which attempts there are depends on nothing but their claims."""
    code, text = call(capsys, run, "ledger", "show", run / "a", tokens=False)
    assert (code, "attempt 1 (after -)" in text, "packed-rows" in text) == (0, True, True)


def test_show_lists_an_update(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its rows' pieces; of updates by tokens, as many rows as hold them."""
    code, text = call(capsys, run, "ledger", "show", run / "b", "--update", 2, "--json")
    found = json.loads(text)["deliveries"]
    tokens = [
        sum(stop - start for _, start, stop in one["pieces"]) for one in sorted(found, key=lambda o: o["position"])
    ]
    assert code == 0
    assert sum(tokens) >= 100 > sum(tokens[:-1])


def test_diff_compares_rows(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same rows at the same positions, whatever the updates; IDs are hashes, too large to count by."""
    code, text = call(capsys, run, "ledger", "diff", run / "a", run / "b")
    assert (code, "the same" in text) == (0, True)


def test_plan_of_a_cursor(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By rows it is a plan like any other; by tokens the rows of an update are not known."""
    flags = ["--microbatch", 2, "--num-replicas", 2]
    code, text = call(capsys, run, "plan", "--cursor", run / "a.json", *flags, tokens=False)
    assert code == 0
    assert "at packed row" in text
    code, text = call(capsys, run, "plan", "--cursor", run / "a.json", *flags, "--epochs", 2, tokens=False)
    assert (code, "--epochs: how many packed rows" in text) == (2, True)
    code, text = call(capsys, run, "plan", "--cursor", run / "b.json", *flags, tokens=False)
    assert (code, "--global-batch 4" in text) == (2, True)

"""Write docs/benchmarks.md and its figures from the stored results."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _sections
from benchmarks._comparisons import Results, losses
from benchmarks._losses import explained
from benchmarks._moves_table import readme_table
from benchmarks._tables import large, seconds, times

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
TABLE_IN_README = re.compile(r"(<!-- moves: written by make bench -->\n).*?(<!-- end of moves -->)", re.DOTALL)


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        question: The module, and the file of its results.
        title: Its heading.
        text: What is asked, and what the reader has to know of it.
        write: Makes the tables.
        figure: A file in docs/img, or empty.
    """

    question: str
    title: str
    text: str
    write: Callable[[Mapping[str, Any]], str]
    figure: str = ""


SECTIONS = (
    Section(
        "data_after_a_move",
        "What a move does to the data",
        "A run stops and goes on in another launch, on ranks that are real processes; all samples of both launches "
        "are counted by `audit-ids`. `+10` are samples read once too often, `-16` samples never read, `exact` is "
        "neither. Another seed is a mistake that a launch can make: what is asked is whether it is noticed, or the "
        "seed of what was saved goes on. After a save at an epoch's end, `empty pass` means that the first pass of "
        "the new launch gives nothing, and the next one is whole: a script that counts passes trains one epoch "
        "less. After a save inside the loop, at its last step, that pass is the rest of the old epoch, and right "
        "for a script that goes on with that epoch's number.\n\n"
        "The counts are not the only thing that differs: where the table says exact, the order that remains may be "
        "another one than without the stop. DistributedSampler documents that it pads, which is part of its counts. "
        "Megatron's samplers are not compared: the package `megatron-core` does not contain them.",
        _sections.data_after_a_move,
    ),
    Section(
        "remap_cost",
        "From a saved state to the first IDs on other ranks",
        "One rank of the new set, no data read; each case is a process. In brackets: times ours, of the same run; MiB "
        "are what it held beyond the memory that imports took. `not run` are sizes that would take minutes, or more "
        "memory than there is. LitData's is all that its dataset does from the loaded state on, but on chunks of 4,096 "
        "samples that it does not read; MosaicML Streaming's is its arrangement of shards of 4,096.",
        _sections.remap_cost,
        "remap.svg",
    ),
    Section(
        "resume_cost",
        "Is that flat?",
        "Ours alone, over 65,537 to 10^12 samples, 8 to 10^6 ranks, 1 % and 99 % of the epoch: the largest time over "
        "the smallest where one of them changes.",
        _sections.resume_cost,
    ),
    Section(
        "first_batch",
        "To the first batch of data",
        "Whole loaders, used as in the first table, which tells what they do to the data. Two ranks, real processes, "
        "read 1 % of an epoch in steps of 64 samples each, and save; that launch is not timed. One process, a fresh "
        "one for each measurement, goes on alone in a gloo group of one, with steps of 128. Timed is what a restarted "
        "job waits for from there: dataset, sampler and loader are made, the state is loaded, the first step is read. "
        "Before the clock runs, the process has joined its group and made the same move on 1,280 samples, so that "
        "imports are not in it. Samples are numbers and cost nothing, the best case of a loader that reads what it "
        "skips.\n\n"
        "Processor time is that of all threads of the process, and `times ours` is of it; no loader has worker "
        "processes here. MosaicML Streaming, Grain, OLMo-core and LitData have threads of their own: the time is less "
        "than the processor time where these work side by side, and more where one waits for another. Memory is what "
        "the process held beyond imports and the small move. Streaming, OLMo-core and LitData read files of up to 10^6 "
        "samples, written a moment ago and in the page cache; Streaming's and LitData's hold some thousand samples "
        "each. OLMo-core finds the epoch's order in a file that the first launch left in its work directory; what it "
        "takes to make one is in the table of first IDs. LitData is told to drop an epoch's last samples, as it does "
        "by itself on several ranks: without that it refuses on one rank what several saved.",
        _sections.first_batch,
    ),
    Section("order_speed", "IDs per second", "Long questions to a shuffle.", _sections.order_speed),
    Section(
        "loader_overhead",
        "Batches per second",
        "Beside a plain DataLoader (in brackets: times its time, of the same round) and StatefulDataLoader, for items "
        "of 50 µs, as a small image or a token row costs, and for items that cost nothing. With workers ours is faster "
        "because a small microbatch comes through the worker's pipe; others open a shared memory for each tensor.",
        _sections.loader_overhead,
        "loader.svg",
    ),
    Section(
        "packed_loader",
        "Tokens per second of whole loaders",
        "Batches of 32,768 tokens with labels. Ours gives positions and the borders of documents as well, and keeps a "
        "ledger. `memcpy` is the copy of the bytes. Other loaders' workers send two or more tensors, each through a "
        "shared memory of its own; ours send the tokens as they are stored.",
        _sections.packed_loader,
        "packed.svg",
    ),
    Section(
        "packed_gather",
        "Tokens per second of a batch alone",
        "131,072 tokens in this process, without a loader.",
        _sections.packed_gather,
    ),
    Section(
        "checkpoint_state",
        "What a loader puts into a checkpoint",
        "At 10^7 samples, one rank simulated; workers are real, and starting them is in the load.",
        _sections.checkpoint_state,
    ),
    Section(
        "ledger_audit",
        "Audit",
        "Beside the order alone, whose IDs every audit must compute, and beside the obvious audit, which sorts all "
        "IDs. Folded: 64 microbatches of 8, or 8 of 64, in a record.",
        _sections.ledger_audit,
    ),
    Section(
        "checkpoint_digest",
        "Digest of a checkpoint's tensors",
        "Beside checksums of the same bytes, and a read of them from a file in the page cache.",
        _sections.checkpoint_digest,
    ),
    Section(
        "end_to_end",
        "A training run",
        "A small transformer under FSDP2 on 2 gloo processes, ledger on, stretches of updates in turns.",
        _sections.end_to_end,
    ),
)


def read_documents(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The stored document of each question."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def page(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page."""
    results = {question: document["results"] for question, document in documents.items()}
    parts = [_head(), _standing(results), _losses(results)]
    parts += [_section(section, documents[section.question]) for section in SECTIONS if section.question in documents]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head() -> str:
    return (
        "# Benchmarks\n\n"
        "`make bench` runs the suite in a short form, "
        "and writes this page from the JSON in `benchmarks/results/`; `make bench-full` runs all cases and repeats. "
        "`make bench-check` compares the hot paths with the committed figures, and fails where one lost more than a "
        "quarter of its speed. Every time is a median of interleaved repeats, where the command asks for more than "
        "one, and what counts are ratios within one run: times belong to the machine that is named, and "
        "to what else it was doing. Other packages are installed at the releases that `pyproject.toml` pins (groups "
        "`bench` and `bench-streaming`), and used as their own documentation says; one that does not install is said "
        "to be missing."
    )


def _standing(results: Results) -> str:
    lines = []
    if "remap_cost" in results:
        lines += _remap_lines(results["remap_cost"]["moves"])
        planned = results["remap_cost"]["planning"]["1000000 ranks"]
        lines.append(f"rows of all of 10^6 ranks of one update: {seconds(planned['rows_median_s'])}")
    if "loader_overhead" in results:
        worst = {
            case: loaders["ours, ledger of digests"]["ratio"] for case, loaders in results["loader_overhead"].items()
        }
        lines += [f"loader, {case}: {ratio:.2f} times a plain DataLoader's time" for case, ratio in worst.items()]
        lines += _ledger_lines(results["loader_overhead"])
    if "packed_loader" in results:
        lines += _packed_lines(results["packed_loader"])
    if "end_to_end" in results:
        for case, entry in results["end_to_end"].items():
            pairs = entry["pairs"]
            lines.append(
                f"training with {case}: {entry['ours']['ratio']:.3f} times the time with torch's loader "
                f"(middle half of pairs {pairs['quarter']:.3f} to {pairs['three_quarters']:.3f})"
            )
    return "## Where we stand\n\n" + "\n".join(f"* {line}" for line in lines) if lines else ""


def _remap_lines(moves: Mapping[str, Any]) -> list[str]:
    peer = "DistributedSampler, batches skipped"
    best: dict[int, float] = {}
    for case, loaders in moves.items():
        if "times_ours" in loaders.get(peer, {}):
            length = int(case.split()[0])
            best[length] = min(best.get(length, float("inf")), loaders[peer]["times_ours"])
    return [
        f"first IDs after a move, {large(n)} samples: DistributedSampler takes {times(least)} our time or more"
        for n, least in best.items()
    ]


def _packed_lines(results: Mapping[str, Any]) -> list[str]:
    lines = []
    for case, loaders in results.items():
        peers = [
            (one["ratio"], name) for name, one in loaders.items() if "ratio" in one and name not in ("ours", "memcpy")
        ]
        if peers:
            ratio, name = min(peers)
            lines.append(f"packed rows, {case}: the fastest other, {name}, takes {times(ratio)} our time")
    return lines


def _ledger_lines(results: Mapping[str, Any]) -> list[str]:
    cost = results.get("item 0 us, 0 workers", {}).get("ours, ledger of digests", {}).get("over_no_ledger_s")
    if cost is None:
        return []
    return [
        f"a ledger of digests adds {seconds(cost)} to a microbatch: under 1 % where a microbatch takes over "
        f"{seconds(100 * cost)}"
    ]


def _losses(results: Results) -> str:
    found = explained(losses(results))
    text = "## Where we lose\n\nEverything in which ours costs over 10 % more than another, and why:\n"
    for reason, group in found.items():
        worst = min(group, key=lambda one: one.times_ours)
        cases = f"{worst.case}, beside {worst.peer}: {times(1 / worst.times_ours)} its cost"
        more = f", and {len(group) - 1} more like it" if len(group) > 1 else ""
        text += f"\n* `{worst.question}`: {cases}{more}. {reason[:1].upper()}{reason[1:]}"
    return text if found else text + "\nNothing."


def _section(section: Section, document: Mapping[str, Any]) -> str:
    figure = f"\n\n![{section.title}](img/{section.figure})" if section.figure else ""
    runs = document.get("runs", [document])
    how = "; ".join(dict.fromkeys(f"`{run['command']}`" for run in runs))
    where = "; ".join(dict.fromkeys(_machine(run) for run in runs))
    return (
        f"## {section.title}\n\n{section.text}\n\n{section.write(document['results'])}{figure}\n\n"
        f"Reproduce: {how}. Measured on {where}."
    )


def _machine(run: Mapping[str, Any]) -> str:
    machine = run["machine"]
    return f"{machine['cpu']}, {machine['num_cpus']} cores, torch {machine['versions']['torch']}, {run['time'][:10]}"


def with_table(readme: str, results: Mapping[str, Any]) -> str:
    """The README with the table of moves in its place."""
    return TABLE_IN_README.sub(lambda found: f"{found[1]}\n{readme_table(results)}\n\n{found[2]}", readme)


def main() -> None:
    """Write page, figures and the README's table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    documents = read_documents()
    PAGE.write_text(page(documents))
    README.write_text(with_table(README.read_text(), documents["data_after_a_move"]["results"]))
    try:
        from benchmarks._plots import draw
    except ImportError as error:
        print(f"no figures were drawn: {error}. Install the group bench, as make bench does.")
        return
    draw({question: document["results"] for question, document in documents.items()}, ROOT / "docs" / "img")


if __name__ == "__main__":
    main()

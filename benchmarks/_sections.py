"""The page's sections: what the stored results of each question say, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks._moves_table import COLUMNS, moves_table, reasons
from benchmarks._tables import count, large, outcome, seconds, table, times

Found = Mapping[str, Any]


def data_after_a_move(results: Found) -> str:
    """Question 3."""
    how = "\n".join(f"* {name}: {loader['how']}." for name, loader in results.items())
    why = "\n".join(reasons(results))
    return f"{moves_table(results, COLUMNS)}\n\nHow each was used:\n\n{how}\n\nWhat those that refused said:\n\n{why}"


def remap_cost(results: Found) -> str:
    """Question 2, to the first IDs."""
    moves = results["moves"]
    names = list(dict.fromkeys(name for loaders in moves.values() for name in loaders))
    rows = [[_move(case), *(_cost(loaders.get(name)) for name in names)] for case, loaders in moves.items()]
    planned = [
        [large(int(case.split()[0])), seconds(entry["rows_median_s"]), seconds(entry["samples_median_s"])]
        for case, entry in results["planning"].items()
    ]
    return (
        table(["samples, ranks, epoch done", *names], rows)
        + "\n\nRows of all ranks of one update, and their samples among 10^12:\n\n"
        + table(["ranks", "rows", "with samples"], planned)
    )


def _move(case: str) -> str:
    samples, ranks, done = case.split(", ")
    before, after = (large(int(one)) for one in ranks.removesuffix(" ranks").split(" to "))
    return f"{large(int(samples.split()[0]))}, {before} → {after}, {done}"


def _cost(entry: Found | None) -> str:
    why = outcome(entry) if entry is not None else "not run"
    if entry is None or why is not None:
        return why or ""
    memory = f", {entry['more_memory_mib']:.0f} MiB" if entry["more_memory_mib"] >= 1 else ""
    own = seconds(entry["s"]) + memory
    return own if entry["times_ours"] == 1 else f"{own} ({times(entry['times_ours'])})"


def first_batch(results: Found) -> str:
    """Question 2, to the first batch."""
    rows = []
    for case, loaders in results.items():
        for name, entry in loaders.items():
            why = outcome(entry)
            cells = [why, "", "", ""] if why else _first(entry)
            rows.append([large(int(case.split()[0])), name, *cells])
    text = table(["samples", "loader", "processor time", "times ours", "time", "memory"], rows)
    names = dict.fromkeys(name for loaders in results.values() for name in loaders)
    said = reasons({name: {case: loaders.get(name) for case, loaders in results.items()} for name in names})
    return text + ("\n\nWhat those without a time said:\n\n" + "\n".join(said) if said else "")


def _first(entry: Found) -> list[str]:
    memory = f"{entry['more_memory_mib']:.0f} MiB"
    return [seconds(entry["processor_s"]), times(entry["times_ours"]), seconds(entry["s"]), memory]


def resume_cost(results: Found) -> str:
    """Question 2, how flat ours is."""
    median, best = results["summary"]
    rows = []
    for name, one in (("median", median), ("best", best)):
        flat = one["largest_over_smallest_above_table"]
        rows.append([name, f"{one['largest_case_ms']:.3g} ms", *(times(flat[key]) for key in flat)])
    head = ["of repeats", "10^12 samples, 10^6 ranks", "over lengths", "over ranks", "over progress"]
    return table(head, rows)


def order_speed(results: Found) -> str:
    """Question 4, IDs."""
    rows = [
        [name, count(entry["units_per_s"]) + "/s", times(entry["ratio"])]
        for name, entry in results["throughput"].items()
    ]
    return table(["one thread", "IDs", "time of an ID, times torch's"], rows)


def loader_overhead(results: Found) -> str:
    """Question 4, batches."""
    names = list(dict.fromkeys(name for loaders in results.values() for name in loaders))
    rows = [
        [case, *(f"{seconds(entry['median_s'])} ({entry['ratio']:.2f})" for entry in loaders.values())]
        for case, loaders in results.items()
    ]
    return table(["a batch of 8", *names], rows)


def packed_loader(results: Found) -> str:
    """Question 4, tokens of a whole loader."""
    names = list(dict.fromkeys(name for loaders in results.values() for name in loaders))
    rows = []
    for case, loaders in results.items():
        cells = [_rate(loaders.get(name)) for name in names]
        rows.append([case, *cells])
    return table(["tokens/s (time, times ours)", *names], rows)


def _rate(entry: Found | None) -> str:
    if entry is None:
        return "-"
    return outcome(entry) or f"{count(entry['units_per_s'])} ({entry['ratio']:.2f})"


def packed_gather(results: Found) -> str:
    """Question 4, tokens of a batch alone."""
    others = [[name, _rate(entry)] for name, entry in results["others"].items()]
    limits = [
        [length, *(f"{found['share'][kind]:.2f}" for kind in ("new", "kept", "reused"))]
        + [count(found["tokens"][name]["units_per_s"]) for name in ("gather, reused", "memcpy, reused")]
        for length, found in results["limit"].items()
    ]
    head = ["row length", "new memory", "kept", "reused", "tokens/s, reused", "memcpy, tokens/s"]
    return (
        table(["a batch", "tokens/s (time, times ours)"], others)
        + "\n\nShare of the speed of writing the same arrays from one run of tokens:\n\n"
        + table(head, limits)
    )


def checkpoint_state(results: Found) -> str:
    """Question 5, the state."""
    rows = []
    for case, loaders in results.items():
        for name, entry in loaders.items():
            why = outcome(entry)
            cells = (
                [why, "", ""] if why else [f"{entry['bytes']:,}", seconds(entry["save_s"]), seconds(entry["load_s"])]
            )
            rows.append([case, name, *(cell or "" for cell in cells)])
    return table(["", "loader", "bytes of the job", "save", "load to the next batch"], rows)


def ledger_audit(results: Found) -> str:
    """Question 5, the audit."""
    rows = [
        [
            name,
            count(entry["units_per_s"]) + "/s",
            f"{entry['ratio']:.2f} x",
            f"{entry['bytes_per_id']:.3g}" if "bytes_per_id" in entry else "-",
        ]
        for name, entry in results["speed"].items()
    ]
    text = table(["ledger", "IDs of processor time", "time, times the order alone", "bytes per ID"], rows)
    if "memory" in results:
        peaks = [[name, f"{one['peak_mb']:.0f} MiB", seconds(one["cpu_s"])] for name, one in results["memory"].items()]
        text += "\n\n" + table(["audited", "peak memory of the process", "processor time"], peaks)
    return text


def checkpoint_digest(results: Found) -> str:
    """Question 5, the digest."""
    rows = [[name, f"{entry['gb_per_s']:.3g}", f"{1 / entry['ratio']:.2f}"] for name, entry in results["speed"].items()]
    return table(["one thread", "GB/s", "of memcpy's speed"], rows)


def end_to_end(results: Found) -> str:
    """Question 6."""
    rows = []
    for case, entry in results.items():
        pairs = entry["pairs"]
        plain = entry["DistributedSampler and DataLoader"]["units_per_s"]
        rows.append(
            [
                case,
                f"{plain:.3g}",
                f"{entry['ours']['units_per_s']:.3g}",
                f"{entry['ours']['ratio']:.3f}",
                f"{pairs['quarter']:.3f} to {pairs['three_quarters']:.3f}",
            ]
        )
    head = ["", "DistributedSampler + DataLoader, steps/s", "ours", "paired ratio of times", "middle half of pairs"]
    return table(head, rows)

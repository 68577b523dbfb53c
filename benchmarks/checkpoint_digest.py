"""How fast is the digest of a tensor, beside other checksums of the same bytes and a copy of them?

One thread, random bytes as tensors of several shapes: long rows and short, whole and a half of each row, on word
borders and off them, from files' bytes and from torch tensors ("live"). "accelerator's way, on the CPU" is the code
that runs on a device, run without one; it says nothing of a device's speed.

Targets: 3 GB/s for one- and two-dimensional float32 and bfloat16.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.checkpoint.device_digest import device_sum
from resumable_data.checkpoint.digest import box_digest
from resumable_data.checkpoint.live_digest import tensor_sum

TARGET_BYTES_PER_S = 3e9
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
DTYPES = {2: torch.bfloat16, 4: torch.float32}


def box_case(
    data: NDArray[np.uint8], itemsize: int, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[Callable[[], object], int]:
    """The digest of a box, and its bytes."""
    num_bytes = itemsize * math.prod(sizes)
    raw: Any = data[:num_bytes]
    return partial(box_digest, raw, itemsize, shape, offsets, sizes), num_bytes


def live_case(
    data: NDArray[np.uint8], itemsize: int, shape: tuple[int, ...], function: Callable[..., object]
) -> tuple[Callable[[], object], int]:
    """The digest of a whole tensor of torch, and its bytes."""
    num_bytes = itemsize * math.prod(shape)
    tensor = torch.from_numpy(data[:num_bytes]).view(DTYPES[itemsize]).view(shape)
    return partial(function, tensor, shape, (0,) * len(shape)), num_bytes


def _read(path: Path, target: Any) -> None:
    with path.open("rb", buffering=0) as file:
        if file.readinto(target) != len(target):
            raise SystemExit("the file was read in part")


def make_cases(num_bytes: int, path: Path) -> dict[str, tuple[Callable[[], object], int]]:
    """What is measured, each with the bytes that it handles."""
    data = np.random.default_rng(1).integers(0, 256, num_bytes, dtype=np.uint8)
    target = np.empty_like(data)
    data.tofile(path)
    rows = num_bytes // (4096 * 4)
    raw: Any = data
    cases: dict[str, tuple[Callable[[], object], int]] = {
        "memcpy": (lambda: np.copyto(target, data), num_bytes),
        "file read": (partial(_read, path, target), num_bytes),  # of the page cache
        "xxh3_64": (lambda: xxhash.xxh3_64_intdigest(raw), num_bytes),
        "zlib.crc32": (lambda: zlib.crc32(raw), num_bytes),
        "sha256": (lambda: hashlib.sha256(raw).digest(), num_bytes),
        "float32, 1-D": box_case(data, 4, (num_bytes // 4,), (0,), (num_bytes // 4,)),
        "bfloat16, 1-D": box_case(data, 2, (num_bytes // 2,), (0,), (num_bytes // 2,)),
        "float32, rows of 4096": box_case(data, 4, (rows, 4096), (0, 0), (rows, 4096)),
        "bfloat16, rows of 8192": box_case(data, 2, (rows, 8192), (0, 0), (rows, 8192)),
        "bfloat16, rows of 4095": box_case(data, 2, (2 * rows, 4095), (0, 0), (2 * rows, 4095)),
        "bfloat16, the odd half of rows of 8191": box_case(data, 2, (2 * rows, 8191), (0, 4095), (2 * rows, 4096)),
        "float32, rows of 64": box_case(data, 4, (64 * rows, 64), (0, 0), (64 * rows, 64)),
        "float32, kernels of 3 x 3": box_case(data, 4, (rows, 455, 3, 3), (0, 0, 0, 0), (rows, 455, 3, 3)),
        "float32, a quarter of rows of 16": box_case(data, 4, (256 * rows, 16), (0, 4), (256 * rows, 4)),
        "live float32, rows of 4096": live_case(data, 4, (rows, 4096), tensor_sum),
        "live bfloat16, 1-D": live_case(data, 2, (num_bytes // 2,), tensor_sum),
        "accelerator's way, on the CPU": live_case(data, 4, (rows, 4096), device_sum),
    }
    function, stored_bytes = box_case(data, 4, (4096, rows), (0, 0), (4096, rows))
    assert isinstance(function, partial)
    cases["float32, stored transposed"] = partial(function, strides=(1, 4096)), stored_bytes
    return cases


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--mebibytes", type=int, default=256, help="of the tensors")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="wall, or the thread's own processor time, for a busy machine"
    )
    add_output_argument(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cases = make_cases(arguments.mebibytes << 20, Path(folder) / "data")
        runs = {name: run for name, (run, _) in cases.items()}
        seconds = interleave(runs, arguments.repeats, CLOCKS[arguments.clock])
    units = {name: num_bytes for name, (_, num_bytes) in cases.items()}
    rates = summarise(seconds, reference="memcpy", units=units)
    for name, figures in rates.items():
        figures["gb_per_s"] = figures.pop("units_per_s") / 1e9
        figures["best_gb_per_s"] = units[name] / figures["best_s"] / 1e9
    targets = ["float32, 1-D", "bfloat16, 1-D", "float32, rows of 4096", "bfloat16, rows of 8192"]
    targets += ["live float32, rows of 4096", "live bfloat16, 1-D"]
    met = {f"3 GB/s, {name}": rates[name]["gb_per_s"] * 1e9 >= TARGET_BYTES_PER_S for name in targets}
    results = {"clock": arguments.clock, "mebibytes": arguments.mebibytes, "speed": rates, "targets_met": met}
    report("checkpoint_digest", results, arguments)


if __name__ == "__main__":
    main()

"""Run every benchmark, each in a process of its own, one after another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run them all; the exit code is 1 when one failed."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    failed = []
    for name in names:
        print(f"benchmarks.{name}", file=sys.stderr, flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

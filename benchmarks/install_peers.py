"""Install a dependency group of pyproject.toml into this environment, one package after another.

What does not install is named and left out; the benchmarks then say that it is missing. The release of torch stays.
Run as a script: ``python benchmarks/install_peers.py GROUP TORCH``.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Install them."""
    group, torch = sys.argv[1:]
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    for package in project["dependency-groups"][group]:
        command = [sys.executable, "-m", "pip", "install", "--quiet", torch, package]
        if subprocess.run(command, check=False).returncode:
            print(f"{package} does not install here and is left out", file=sys.stderr)


if __name__ == "__main__":
    main()

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
        if _run("-m", "pip", "install", "--quiet", torch, package):
            print(f"{package} does not install here and is left out", file=sys.stderr)
    # LitData brings one that may be built for another torch. It does without; others fail when they find it.
    if _run("-c", "import importlib.util as u; u.find_spec('torchvision') and __import__('torchvision')"):
        print("torchvision does not fit this torch and is removed", file=sys.stderr)
        _run("-m", "pip", "uninstall", "--quiet", "--yes", "torchvision")


def _run(*arguments: str) -> int:
    return subprocess.run([sys.executable, *arguments], check=False).returncode


if __name__ == "__main__":
    main()

"""What importing the package costs, and which names it offers."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import resumable_data

TORCH_FREE = [
    "resumable_data",
    "resumable_data.errors",
    "resumable_data.findings",
    "resumable_data.order",
    "resumable_data.plan",
    "resumable_data.cursor",
    "resumable_data.ledger",
    "resumable_data.audit",
    "resumable_data.checkpoint",
    "resumable_data.checkpoint.manifest",
    "resumable_data.checkpoint.migration.coverage",
    "resumable_data.checkpoint.migration.migration_text",
    "resumable_data.packing",
    "resumable_data.logs",
    "resumable_data.lookup",
    "resumable_data.shadowing",
    "resumable_data.sources",
    "resumable_data.tokenizing",
    "resumable_data.checkpoint",
    "resumable_data.checkpoint.agreed_digests",
    "resumable_data.checkpoint.random_layout",
    "resumable_data.checkpoint.retention",
    "resumable_data.cli",
    "resumable_data.cli.compare",
    "resumable_data.cli.plan",
    "resumable_data.cli.rehearse",
    "resumable_data.rehearse",
    "resumable_data.validation",
    "resumable_data.validation.checks",
    "resumable_data.validation.compare",
    "resumable_data.validation.judging",
    "resumable_data.validation.rehearsal.files",
    "resumable_data.validation.rehearsal.untouched",
    "resumable_data.validation.trace_writer",
    "resumable_data.validation.verdict",
    "resumable_data.validation.watch_report",
    "resumable_data.rng",
]


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def first_with_torch(modules: list[str]) -> str:
    """The first of some modules after whose import torch is there, in a new process that imports one after another."""
    return run_python(
        "import importlib, sys\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(module)\n"
        "    if 'torch' in sys.modules:\n"
        "        print(module)\n"
        "        break\n"
    )


def test_modules_do_not_import_torch() -> None:
    """Planning, auditing and the command line start without the second that importing torch takes."""
    assert first_with_torch(TORCH_FREE) == ""


def test_the_check_for_torch_can_fail() -> None:
    """A module that does import torch is seen by the check above, and named."""
    assert first_with_torch(["sys", "resumable_data.loader", "resumable_data.order"]) == "resumable_data.loader"


@pytest.mark.parametrize("name", resumable_data.__all__)
def test_public_name_resolves(name: str) -> None:
    """Each public name is found, under its own name, where the type checker is told that it is."""
    value = getattr(resumable_data, name)
    assert name in dir(resumable_data)
    assert getattr(value, "__name__", name) == name


def test_every_lazy_name_is_public() -> None:
    """The table of lazy names and ``__all__`` name the same things."""
    assert sorted([*resumable_data._HOMES, "__version__"]) == sorted(resumable_data.__all__)


def test_no_public_name_is_a_submodule() -> None:
    """A name means the same thing whether or not a submodule of that name was imported before."""
    submodules = {module.name for module in pkgutil.iter_modules(resumable_data.__path__)}
    assert submodules
    assert submodules.isdisjoint(resumable_data.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as it does for any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Shufle'"):
        _ = resumable_data.Shufle  # type: ignore[attr-defined]

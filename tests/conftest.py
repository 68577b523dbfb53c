"""Settings that every test shares."""

from __future__ import annotations

import os
import signal

# Two test workers, their forked ranks and torch's own threads would otherwise fight for the same cores.
# This must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from tests import examples

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A failure in CI must be one that everybody gets: no random examples, and the failing one is printed.
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Let `tests.examples` know which run this is."""
    examples.is_quick = "not slow" in config.option.markexpr

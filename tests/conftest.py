"""Settings of the whole test suite."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declares the suite's own markers."""
    # before anything imports torch, here and in what is started from here
    os.environ["OMP_NUM_THREADS"] = "1"
    config.addinivalue_line("markers", "parallel: starts several processes that talk over gloo (seconds each).")

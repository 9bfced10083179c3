"""Settings of the whole test suite."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declares the suite's own markers."""
    config.addinivalue_line("markers", "parallel: starts several processes that talk over gloo (seconds each).")

"""Recipes written to a folder of their own, which is the working folder of the test."""

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A function (name, text) -> name that writes a file into the working folder."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write_file


@pytest.fixture
def demo_recipe(request: pytest.FixtureRequest) -> str:
    """Path of the demo's recipe."""
    return str(request.config.rootpath / "recipes/demo/grpo_arithmetic.yaml")

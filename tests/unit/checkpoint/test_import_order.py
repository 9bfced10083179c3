"""megarl.megatron prepares torch, so it is imported before megatron.core, whichever module a process starts with."""

import ast
from pathlib import Path

import pytest

import megarl

ROOT = Path(megarl.__file__).parent
# these two are what prepares torch, and what is only imported after it
EXEMPT = ("megatron", "platform")


def imported(path: Path) -> list[str]:
    """Modules that a file imports at its top level, in order."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


USERS = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if path.relative_to(ROOT).parts[0] not in EXEMPT and any(name.startswith("megatron") for name in imported(path))
]


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_megatron_core_comes_second(path: Path) -> None:
    names = imported(path)
    first = next(place for place, name in enumerate(names) if name.startswith("megatron"))
    assert any(name.startswith("megarl.megatron") for name in names[:first])

"""Imports run downwards, and only where a package may: the layers of the architecture, held by the source text."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "megarl"
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"cli", "__main__"}),
    frozenset({"commands"}),
    frozenset({"launch", "preflight", "doctor", "submit"}),
    frozenset({"loop"}),
    frozenset({"diagnose"}),
    frozenset({"rollout", "sync", "rewards", "data", "evaluate", "checkpoint", "observe", "dumps"}),
    frozenset({"megatron"}),
    frozenset({"drift"}),
    frozenset({"objectives"}),
    frozenset({"platform"}),
    frozenset({"plan"}),
    frozenset({"config"}),
)
FILES = sorted(PACKAGE.rglob("*.py"))
PURE = {"objectives", "drift"}
"""Packages that know nothing of torch.distributed, Megatron or files."""


def part(path: Path) -> str:
    """The first name below megarl."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def level(name: str) -> int:
    """Depth of a part; 0 is the top."""
    return next(depth for depth, names in enumerate(LAYERS) if name in names)


def imported(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downwards(path: Path) -> None:
    """A file imports its own layer and those below it."""
    if path == PACKAGE / "__init__.py":
        return
    own = level(part(path))
    for name in imported(path):
        if name.startswith("megarl.") and not name.startswith("megarl.__"):
            target = name.split(".")[1]
            assert level(target) >= own, f"{path} imports {name}, which is above it"


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in PURE], ids=lambda path: path.name)
def test_pure_packages_stay_pure(path: Path) -> None:
    """Objectives and drift see tensors alone."""
    forbidden = ("torch.distributed", "megatron", "pathlib", "os", "io", "json")
    assert not [
        name for name in imported(path) if name in forbidden or name.startswith(("torch.distributed", "megatron"))
    ]


def test_only_the_platform_asks_for_a_gpu() -> None:
    """`torch.cuda.is_available` is called in megarl/platform alone, and by doctor, which reports it."""
    asking = {part(path) for path in FILES if "cuda.is_available()" in path.read_text()}
    assert asking <= {"platform", "doctor"}


def test_files_are_small() -> None:
    """No file over 500 lines; the median at 120 or below."""
    lines = sorted(len(path.read_text().splitlines()) for path in FILES if path.name != "__init__.py")
    assert lines[-1] <= 500
    assert lines[len(lines) // 2] <= 120

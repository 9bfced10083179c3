"""Installation, in processes of its own: what it patches cannot be undone."""

import subprocess
import sys


def python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a new interpreter."""
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=120)


def test_refuses_after_megatron_core() -> None:
    done = python("import megatron.core; import megarl.platform as p; p.install()")
    assert done.returncode == 1
    assert "RuntimeError: megatron.core was imported before megarl" in done.stderr
    assert done.stderr.rstrip().endswith("import megarl.megatron before megatron.core.")


def test_refusal_is_repeated_and_patches_nothing() -> None:
    code = """
import megatron.core, torch, megarl.platform as p
empty = torch.empty
for _ in range(2):
    try:
        p.install()
    except RuntimeError:
        print("refused")
assert torch.empty is empty
"""
    done = python(code)
    assert done.stdout == "refused\nrefused\n", done.stderr


def test_platform_alone_patches_nothing() -> None:
    code = """
import torch
empty = torch.empty
import megarl.platform as p
assert p.current().name == "cpu" and torch.empty is empty
import sys
assert "megatron.core" not in sys.modules
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_megatron_is_quiet_about_missing_extensions() -> None:
    code = """
import megarl.platform as p; p.install()
import megatron.core.models.gpt, megatron.core.distributed, megatron.core.dist_checkpointing
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "Apex" not in done.stderr


def test_other_warnings_are_heard() -> None:
    code = """
import megarl.platform as p; p.install()
import warnings
warnings.warn("Transformer Engine and Apex are not installed. Falling back to chance")
warnings.warn("Apex is not what it was")
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "Apex is not what it was" in done.stderr
    assert "chance" not in done.stderr

"""What `megarl doctor` finds and how it says it."""

import io
import os
import platform
from dataclasses import fields
from importlib.metadata import version

import pytest
from rich.console import Console

from megarl.cli import main
from megarl.config.rollout import RolloutConfig
from megarl.doctor import Finding, exit_code, line, packages, slurm, table, torch_findings

MISSING = Finding("vllm", None, "rollouts", "pip install -e .[vllm]")
NEEDED = Finding("torch", None, "tensors", "pip install torch", needed=True)
FOUND = Finding("torch", "2.9", "tensors", "pip install torch", needed=True)


def test_only_a_missing_need_is_exit_code_1() -> None:
    assert exit_code([FOUND, MISSING]) == 0
    assert exit_code([FOUND, MISSING, NEEDED]) == 1


def test_lines_say_what_is_missing_and_how_to_get_it() -> None:
    assert line(FOUND) == "torch: 2.9"
    assert line(MISSING) == "vllm: missing; gives rollouts; pip install -e .[vllm]"


def test_the_table_keeps_the_brackets_of_an_extra() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(table([FOUND, MISSING]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "pip install -e .[vllm]" in text
    assert "missing" in text
    assert "2.9" in text


def test_versions_are_the_installed_ones() -> None:
    found = {finding.name: finding.found for finding in packages()}
    assert found["python"] == platform.python_version()
    assert found["megatron-core"] == version("megatron-core")


def test_torch_knows_gloo_here() -> None:
    found = {finding.name: finding.found for finding in torch_findings()}
    assert found["torch.distributed gloo"] == "yes"
    assert found["torch build"] is not None


def test_nothing_that_is_not_there_is_promised() -> None:
    gives = {finding.name: finding.gives for finding in packages()}
    engine = next(field for field in fields(RolloutConfig) if field.name == "engine")
    for name in ("vllm", "sglang"):
        assert (name in engine.metadata["choices"]) is not gives[name].startswith("nothing yet")


def test_extras_are_installed_under_the_constraints() -> None:
    how = {finding.name: finding.how for finding in packages()}
    assert how["wandb"] == ".venv/bin/pip install -c constraints.txt -e '.[wandb]'"


def test_slurm_without_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert [finding.found for finding in slurm()] == [None, None]


def test_slurm_version_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    sbatch = f"{tmp_path}/sbatch"
    with open(sbatch, "w") as file:
        file.write("#!/bin/sh\necho slurm 24.05.1\n")
    os.chmod(sbatch, 0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [finding.found for finding in slurm()] == ["slurm 24.05.1", None]


def test_a_slurm_command_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    srun = f"{tmp_path}/srun"
    with open(srun, "w") as file:
        file.write("#!/bin/sh\necho srun: fatal: no configuration >&2\necho more >&2\nexit 1\n")
    os.chmod(srun, 0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm()[1].found == "present, but does not run here: srun: fatal: no configuration"


def test_the_command_prints_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"python: {platform.python_version()}\n" in out
    assert out.startswith("The demo can run.\n")
    assert "\x1b" not in out

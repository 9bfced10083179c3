"""What `megarl submit` refuses before SLURM is asked, and what it prints where nothing is submitted."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from megarl.config.errors import UserError
from megarl.submit.command import Request, submit
from tests.runs import RECIPE, REPOSITORY
from tests.unit.submit.hostile import VALUES

DRY = Request(str(REPOSITORY / RECIPE), (), REPOSITORY / "slurm/profiles/cpu_nodes.yaml", ("nodes=1",), dry_run=True)


def test_a_dry_run_prints_the_script_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    submit(replace(DRY, dependency="afterok:123"))
    printed = capsys.readouterr().out
    assert printed.startswith("#!/bin/bash\n") and printed.endswith('finish "$code"\n')
    assert list(tmp_path.iterdir()) == []


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "no job": ({"chain": 0}, "--chain 0 is no number of jobs"),
    "a chain of arrays": ({"chain": 2, "seeds": "0-2"}, "--chain 2 with 3 runs is no chain"),
    "a signal at the start": (
        {"settings": ("nodes=1", "requeue.signal_before_s=3600")},
        r"requeue\.signal_before_s=3600 leaves nothing of time_limit=\"01:00:00\"",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    changed, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        submit(replace(DRY, **changed))


@pytest.mark.parametrize("value", [value for value in VALUES if value != "-rf"])
def test_a_dependency_is_no_way_into_the_command(value: str) -> None:
    with pytest.raises(UserError, match="--dependency"):
        submit(replace(DRY, dependency=value))


SLURM = """#!/bin/sh
echo "$(basename "$0") $*" >>calls
test "$(basename "$0")" = scancel && exit 0
test "$(grep -c sbatch calls)" -gt 2 && echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2 && exit 1
grep -c sbatch calls
"""
"""sbatch that takes two jobs and no third, and scancel."""


def test_of_a_chain_that_is_refused_halfway_no_job_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sbatch", "scancel"):
        (tmp_path / name).write_text(SLURM)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match="sbatch refused: sbatch: error: QOSMaxSubmitJobPerUserLimit"):
        submit(replace(DRY, chain=3, dry_run=False))
    commands = (tmp_path / "calls").read_text().splitlines()
    assert [command.split()[0] for command in commands[:3]] == ["sbatch"] * 3
    assert commands[3:] == ["scancel 2", "scancel 1"]
    assert list((tmp_path / "runs/slurm").glob("*.job.json")) == []

import json
from pathlib import Path

import pytest
from rich.console import Console

from megarl.cli import main
from megarl.observe.compare import comparison


def test_two_runs_side_by_side(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    step = {"phase": "rl", "step": 1, "reward/mean": 0.25, "drift/abs_mean": 0.5, "tokens_per_s/rollout": 77.0}
    (other / "metrics.jsonl").write_text(json.dumps(step) + "\n")
    assert main(["compare", str(run_folder), str(other)]) == 0
    rows = {line[:34].strip(): line[34:].split() for line in capsys.readouterr().out.splitlines()}
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    first = next(line["reward/mean"] for line in lines if line["phase"] == "rl")
    assert rows["reward, first step"] == [f"{first:.3f}", "0.250"]
    assert rows["drift, mean |Δ log-prob|, nats"][-1] == "0.500"
    assert rows["tokens/s, rollout"][-1] == "77.0"
    # the other run was not evaluated
    assert len(rows["pass@1, after RL"]) == 1


def test_a_folder_without_steps_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_run_is_named_as_it_is_called() -> None:
    """Rich would take the brackets for markup."""
    steps = {"rl": {"steps": 1, "tokens_per_s": {}, "seconds": {}, "metrics": {}}}
    console = Console(width=80)
    with console.capture() as captured:
        console.print(comparison([("runs/[red]hot", steps)]))
    assert "runs/[red]hot" in captured.get()

"""`megarl drift diagnose` on the dumps of whole runs, alone: with a fault of the engine, and without one."""

from pathlib import Path

import pytest

from megarl.cli import main
from tests.e2e.planted_engine import faulty
from tests.forked_runs import train

KEYS = (
    *("sft.steps=2", "rl.steps=2", "rl.prompts_per_step=16", "rl.samples_per_prompt=16", "rl.micro_batch_size=64"),
    *("evaluate.samples_per_prompt=0", "observe.dump_every=1", "rollout.temperature=0.6"),
)
SAID = {
    "": "No cause shows in the dump alone.",
    "temperature": "1. temperature, on one side: ",
    "top-p": "1. truncation, on the engine's side: ",
    "raw": "1. raw_log_probs, on the engine's side: ",
    "late": "1. off_by_one, on one side: ",
}


@pytest.mark.parametrize("fault", SAID)
def test_what_a_runs_dumps_tell(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(f"output_dir={tmp_path / 'run'}", *KEYS, start=faulty, more=(fault,))
    assert run.returncode == 0, run.stderr
    assert main(["drift", "diagnose", str(tmp_path / "run")]) == (1 if fault else 0)
    said = capsys.readouterr().out
    assert SAID[fault] in said
    if fault == "temperature":
        assert "temperature is 0.7 times the trainer's" in said
        assert "0.6 was asked for, so either the engine's are at 0.42 or" in said

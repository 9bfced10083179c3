"""A job whose servers end learns of it at once, tells their last words, and ends the trainer that waits for them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megarl.submit.node import main
from tests.runs import REPOSITORY
from tests.unit.submit.rendered import script
from tests.unit.submit.stubs import ended_with_stubs
from tests.unit.submit.test_node import about


@pytest.mark.parametrize("layout", ["split", "hetjob"])
def test_a_run_ends_with_its_servers(layout: str, tmp_path: Path) -> None:
    """The trainer, which would run for ever, ends as at a stop; that is a failure of the servers' and no stop."""
    done = ended_with_stubs(script(tmp_path, (f"output_dir={tmp_path}/run",), layout=layout), tmp_path, DIES="1")
    assert done.returncode == 1, done.stderr
    told = "the servers have ended, with exit code 9, and the run cannot go on without them"
    assert f"megarl: {told}\nmegarl: n2: the server ended with code 9; its log ends with\n  no memory" in done.stderr
    (line,) = (tmp_path / "run" / "slurm" / "attempts.jsonl").read_text().splitlines()
    attempt = json.loads(line)
    assert (attempt["code"], attempt["lost"], attempt["stopped"], attempt["verdict"]) == (1, "9", "", "again")
    reason = "failed at the start with exit code 1 after its servers had ended with exit code 9"
    assert attempt["reason"] == reason and f"again: {reason}" in done.stderr


def test_servers_without_a_word_have_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As when the system kills what watches over them too."""
    assert main(["lost", f"--folder={tmp_path}", "--code=137"]) == 0
    assert f"none of them left a word; their logs are {tmp_path}/*/server.log" in capsys.readouterr().err


def test_attempts_of_an_older_release_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which tell nothing of servers."""
    end = ["end", *about(tmp_path), "--attempt=1-0", "--code=1", "--stopped=", "--bad="]
    assert main([*end, "--lost=9"]) == 0
    log = tmp_path / "slurm" / "attempts.jsonl"
    line = json.loads(log.read_text())
    del line["lost"]
    log.write_text(json.dumps(line) + "\n")
    assert main([*end, "--lost="]) == 0
    assert capsys.readouterr().out == "again\nstop\n"


def test_a_jobs_questions_wait_for_no_torch() -> None:
    """They are asked by the script again and again, on nodes where its import takes many seconds."""
    told = "import sys, megarl.submit.node; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", told], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

"""What a job's script asks: attempts, nodes, servers, copies."""

import json
import os
from pathlib import Path

import pytest

from megarl.submit.health import Answer, bad_nodes, complaint
from megarl.submit.node import main
from megarl.submit.stage import stage

LIMITS = ["--same-step=2", "--failures=9", "--excluded=4", "--requeue"]


def about(run: Path, submission: str = "s") -> list[str]:
    """The arguments that every question about a run has."""
    return [f"--run={run}", f"--submission={submission}", *LIMITS]


def end(run: Path, code: int, submission: str = "s", bad: str = "") -> int:
    return main(
        ["end", *about(run, submission), "--attempt=1-0", f"--code={code}", "--stopped=", f"--bad={bad}", "--lost="]
    )


def test_a_submission_that_was_given_up_begins_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    begin = ["begin", *about(run), "--attempt=1-0"]
    for expected in ("again", "stop"):
        assert main(begin) == 0
        assert (run / "slurm" / "rendezvous" / "1-0").is_dir()
        assert end(run, 1) == 0
        assert capsys.readouterr().out == f"{expected}\n"
        assert not (run / "slurm" / "rendezvous" / "1-0").exists()
    assert main(begin) == 1
    assert "given up: 2 failures in a row at the start" in capsys.readouterr().err
    assert json.loads((run / "slurm" / "stopped.json").read_text())["submission"] == "s"
    # a new submission is a new decision
    assert main(["begin", *about(run, "t"), "--attempt=2-0"]) == 0
    end(run, 1, "t")
    assert capsys.readouterr().out == "again\n"


def test_nodes_that_do_not_answer_are_bad() -> None:
    answers = [Answer("n1", None), Answer("n2", "no disk"), Answer("other", "not ours")]
    assert bad_nodes(["n1", "n2", "n3"], answers) == {"n2": "no disk", "n3": "it did not answer"}
    assert bad_nodes(["n1"], answers) == {}
    assert bad_nodes(["n1"], []) is None


def test_the_list_of_bad_nodes_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SLURM's list of excluded nodes is replaced, so those of earlier attempts stay in it."""
    fine, broken = (json.dumps({"node": node, "complaint": said}) for node, said in (("n1", None), ("n2", "a reason")))
    ask = ["bad", *about(tmp_path), f"--report={fine}\nnoise\n[1]\n{broken}\n", "--", "n1", "n2"]
    assert main(ask) == 1
    captured = capsys.readouterr()
    assert captured.out == "n2\n" and "n2 is bad: a reason" in captured.err
    end(tmp_path, 1, bad="n7")
    capsys.readouterr()
    assert main(ask) == 1
    assert capsys.readouterr().out == "n7,n2\n"
    assert main(["bad", *about(tmp_path), f"--report={fine}", "n1"]) == 0
    assert capsys.readouterr().out == "\n"
    assert main(["bad", *about(tmp_path), "--report=", "n1"]) == 1
    assert "no node answered" in capsys.readouterr().err


def test_health() -> None:
    assert complaint(0.0, 0, []) is None
    assert "less than health.free_gib=1e+09" in str(complaint(1e9, 0, []))
    assert complaint(0.0, 0, ["sh", "-c", "echo why; exit 3"]) == "health.command ended with 3: why"
    assert "127" in str(complaint(0.0, 0, ["/no/such/program"]))
    assert "of 999 GPUs" in str(complaint(0.0, 999, []))


def test_the_override_that_names_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.url").write_text("http://n2:1")
    (tmp_path / "a.url").write_text("http://n1:1")
    (tmp_path / "override").write_text("")
    ask = ["urls", f"--folder={tmp_path}", f"--process={os.getpid()}", "--timeout=0"]
    assert main([*ask, "--count=2"]) == 0
    assert capsys.readouterr().out == 'engine.urls=["http://n1:1", "http://n2:1"]\n'
    assert main([*ask, "--count=3"]) == 1
    assert "2 of 3 servers" in capsys.readouterr().err


def test_a_copy_is_made_once_and_again_where_the_source_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "model", tmp_path / "local" / "key" / "model"
    source.mkdir()
    (source / "a").write_text("1")
    stage(source, target)
    first = (target / "a").stat().st_ino
    stage(source, target)
    assert (target / "a").stat().st_ino == first
    (source / "a").write_text("22")
    (source / "b").write_text("3")
    stage(source, target)
    assert sorted(path.name for path in target.iterdir()) == ["a", "b"] and (target / "a").read_text() == "22"
    stage(source / "a", tmp_path / "local" / "file" / "a")
    assert (tmp_path / "local" / "file" / "a").read_text() == "22"


def test_attempts_that_tell_nothing_are_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(tmp_path, 1)
    log = tmp_path / "slurm" / "attempts.jsonl"
    for line in ('{"submission": "s"}', '{"submission": "s", "bad": 7}', '{"submission": "s", "bad": [], "luck": 1}'):
        log.write_text(line + "\n")
        capsys.readouterr()
        assert end(tmp_path, 1) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"megarl: error: {log} has a line that tells of no attempt") and told.count("\n") == 1
    log.write_text('{"step": 1}\n')
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n')
    assert end(tmp_path, 1) == 0

"""`megarl drift measure` with the engine that needs no server: Megatron against transformers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from megarl.cli import main
from tests.forked_runs import megarl
from tests.runs import RECIPE


def measured(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return megarl("drift", "measure", RECIPE, f"output_dir={folder}", *words, timeout_s=600)


def test_both_sides_are_at_the_floor(tmp_path: Path) -> None:
    ran = measured(tmp_path / "run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "No cause: both sides are as near as this precision allows." in ran.stdout
    assert "and the engine by" in ran.stdout
    assert not (tmp_path / "run").exists()


def test_a_top_p_that_the_trainer_does_not_know_is_named_with_its_mass(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("12+3=\n4*5-1=\n")
    ran = measured(tmp_path / "run", "--engine-top-p", "0.8", "--prompts", str(prompts), "--responses", "24")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "1. truncation, on the engine's side: its log-probs are those with top-p 0.8," in ran.stdout
    assert "keeps a mass of 0.8" in ran.stdout


@pytest.mark.parametrize(
    "words",
    [
        "--responses=0",
        "--engine-temperature=0",
        "--engine-top-p=1.5",
        "--engine-top-k=-1",
        "--keep-weights",
        "--trainer=nowhere",
        "--older=nowhere",
        "--prompts=nowhere",
    ],
)
def test_a_mistake_is_one_sentence(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drift", "measure", RECIPE, words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("megarl: error: ") and said.count("\n") == 1 and words.split("=")[0] in said


@pytest.mark.parametrize(
    "engine",
    ["", "a,b", "[]", "null", "http://127.0.0.1:8000]", "http://127.0.0.1:99999", "http://h:a", "ftp://127.0.0.1:80"],
)
def test_an_engine_that_is_no_address_is_refused_as_it_was_given(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["drift", "measure", RECIPE, "rollout.engine=vllm", f"--engine={engine}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("megarl: error: engine.urls=") and said.count("\n") == 1 and engine in said


def test_an_interpreter_that_is_not_there_is_told_before_a_server_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["drift", "measure", RECIPE, "rollout.engine=vllm", "engine.python=nowhere"]) == 2
    assert capsys.readouterr().err.startswith("megarl: error: engine.python=nowhere is no program;")


@pytest.mark.parametrize("name", ["[x]", "1e5", "null", "a: b #c", "$" + "{oc.env:HOME}", "it's", "x" * 300])
def test_the_trainers_folder_may_have_any_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = tmp_path / name
    if len(name) < 100:
        shutil.copytree("tests/data/base", trainer)
    assert main(["drift", "measure", RECIPE, f"--trainer={trainer}", "rl.steps=none"]) == 2
    complaint = "rl.steps=none" if len(name) < 100 else "--trainer="
    assert capsys.readouterr().err.startswith(f"megarl: error: {complaint}")

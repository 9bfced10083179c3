"""A user's mistake ends the command with one sentence and exit code 2, and leaves nothing behind."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megarl.cli import main
from tests import forked_runs
from tests.runs import RECIPE, REPOSITORY, TINY, command, environment, train


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes name files relative to the repository."""
    monkeypatch.chdir(REPOSITORY)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """`train` takes signals over for the rest of its process, which here is the tests'."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def jsonl(path: Path, rows: list[dict[str, str]]) -> str:
    """Writes rows and returns the overrides that read them."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


FILE = ["data.source=file", "data.options=null", "data.demonstration_column=answer"]
BIGGER = "tokenizer.alphabet='0123456789+-*=;()?ABCDE, #}xyz'"
ROW = {"prompt": "1+1=", "answer": "2"}

RECIPE_MISTAKES = {
    "unknown key": (["rl.prompts_per_stp=4"], ["rl.prompts_per_stp", "rl.prompts_per_step"]),
    "unknown objective": (["rl.objective.name=grop"], ["rl.objective.name=grop", "grpo"]),
    "batch not divisible": (["rl.micro_batch_size=3"], ["rl.micro_batch_size=3"]),
    "tensor parallelism does not divide the heads": (
        ["parallel.world_size=3", "parallel.tensor=3"],
        ["parallel.tensor=3", "model.num_attention_heads=2"],
    ),
    "wrong type": (["rl.steps=many"], ["rl.steps=many"]),
    "out of range": (["rollout.temperature=0"], ["rollout.temperature=0"]),
    "prompt longer than the context": (
        ["model.max_position_embeddings=20", "rollout.max_new_tokens=16", "model.init_from=null"],
        ["evaluation/0", "9 tokens", "max_position_embeddings"],
    ),
    "starting weights of another shape": (["model.hidden_size=32"], ["model.hidden_size=32", "hidden_size=64"]),
    "another tokenizer than the starting weights'": (
        [BIGGER],
        ["has a vocabulary of 30, but the recipe's tokenizer one of 33"],
    ),
    "FP8 without a GPU": (
        ["precision={dtype: bf16, fp8: {recipe: blockwise}}"],
        ["precision.fp8.recipe=blockwise needs a GPU", "set precision.fp8.emulation=true"],
    ),
    "no run to resume": (["resume=must"], ["resume=must", "holds no run"]),
}


@pytest.mark.parametrize("case", RECIPE_MISTAKES)
def test_recipe_mistake(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is refused before the output folder is made."""
    overrides, words = RECIPE_MISTAKES[case]
    refused(["train", RECIPE, *TINY, f"output_dir={tmp_path / 'run'}", *overrides], words, capsys)
    assert not (tmp_path / "run").exists()


DATA_MISTAKES: dict[str, tuple[Callable[[Path], str], list[str]]] = {
    "missing column": (lambda path: jsonl(path, [{"question": "1+1=", "answer": "2"}] * 9), ["prompt", "question"]),
    "empty data": (lambda path: jsonl(path, []), ["is empty"]),
    "prompt longer than the context": (
        lambda path: jsonl(path, [{"prompt": "1" * 200, "answer": "2"}, *[ROW] * 9]),
        ["row-1", "200 tokens"],
    ),
    "unknown character": (lambda path: jsonl(path, [{"prompt": "x", "answer": "2"}, *[ROW] * 9]), ["x"]),
}


@pytest.mark.parametrize("case", DATA_MISTAKES)
def test_data_mistake(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files are read before anything starts."""
    write, words = DATA_MISTAKES[case]
    path = write(tmp_path / "problems.jsonl")
    overrides = [*FILE, f"data.path={path}", "data.eval_prompts=2", f"output_dir={tmp_path / 'run'}"]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"defaults: [{REPOSITORY / RECIPE}]\n")
    refused(["train", str(recipe), *TINY, *overrides], words, capsys)
    assert not (tmp_path / "run").exists()


def refused(argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Runs the command in this process: exit code 2, one line on stderr that holds the words."""
    assert main(argv) == 2
    line = capsys.readouterr().err
    assert line.startswith("megarl: error: ")
    assert line.count("\n") == 1, line
    for word in words:
        assert word in line, line


@pytest.mark.parallel
def test_folder_of_another_recipe(tmp_path: Path) -> None:
    """The difference is named, and the run that is there stays as it is."""
    folder = tmp_path / "run"
    assert forked_runs.train(f"output_dir={folder}", "rl.steps=1").returncode == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    finished = train(f"output_dir={folder}", "rl.steps=2")
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1
    assert "another recipe: rl.steps 1 -> 2 may not change; name" in finished.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parallel
def test_two_ranks_report_a_mistake_once(tmp_path: Path) -> None:
    """With several processes the launcher finds it before it starts any."""
    finished = subprocess.run(
        command(f"output_dir={tmp_path / 'run'}", "parallel.world_size=2", BIGGER),
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parallel
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_negative_reward_under_max_rl_ends_the_run(
    world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found in the first step and told by one rank; the run is saved, and goes on once the reward is mended."""
    overrides = ["rl.advantage=max_rl", "rl.steps=1", "reward.name=tests.e2e.graded.graded", "sft.steps=0"]
    overrides += [
        "evaluate.samples_per_prompt=0",
        f"parallel.world_size={world_size}",
        f"output_dir={tmp_path / 'run'}",
    ]
    monkeypatch.setenv("GRADED", "-0.5")
    # of two ranks' errors the launcher has a say in what is shown
    refused = (forked_runs.train if world_size == 1 else train)(*overrides)
    assert refused.returncode == 2, refused.stderr
    errors = [line for line in refused.stderr.splitlines() if line.startswith("megarl: error: ")]
    assert errors == [
        'megarl: error: rl.advantage=max_rl takes no negative reward, and reward.name="tests.e2e.graded.graded" gave '
        "-0.5 to a response to problem training/0; let it give 0 or more, or take another rl.advantage in a new "
        "output_dir; this run's state was saved."
    ]
    assert "Traceback" not in refused.stderr
    monkeypatch.setenv("GRADED", "0.5")
    mended = forked_runs.train(*overrides)
    assert mended.returncode == 0, mended.stderr


def test_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with files of another kind is left alone."""
    (tmp_path / "thesis.tex").write_text("")
    refused(["train", RECIPE, *TINY, f"output_dir={tmp_path}"], ["holds files that are not a run"], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

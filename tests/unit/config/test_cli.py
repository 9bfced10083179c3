"""Exit codes and streams of the command line."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from megarl import __version__
from megarl.cli import main
from megarl.config.advice import warnings_of
from megarl.config.load import load_recipe

Write = Callable[[str, str], str]


def _megarl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "megarl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", ["train", "config"])
@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("rl.stepz=3", "rl.stepz=3 (command line) is not a recipe key; did you mean rl.steps?"),
        (
            "rl.objective.name=grp",
            "rl.objective.name=grp is neither a registered objective nor a dotted path like module.name; "
            "did you mean grpo?",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(command: str, override: str, sentence: str, demo_recipe: str) -> None:
    ended = _megarl(command, demo_recipe, override)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"megarl: error: {sentence}\n")


def test_config_prints_a_recipe_without_loading_torch(demo_recipe: str) -> None:
    code = (
        "import sys; from megarl.cli import main\n"
        f"assert main(['config', {demo_recipe!r}]) == 0\n"
        "heavy = {'torch', 'megatron', 'transformers', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("name: demo ")


def test_config_output_is_a_recipe(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("a.yaml", "rl: {steps: 3}")
    assert main(["config", path, "seed=1", "--docs", "rl.prompts_per_step=8", "seed=2"]) == 0
    again = load_recipe(write("b.yaml", capsys.readouterr().out)).recipe
    assert (again.seed, again.rl.steps, again.rl.prompts_per_step) == (2, 3, 8)


K3_IN_REWARD = ["rl.kl={coefficient: 0.1, placement: reward, estimator: k3}"]
K3_WARNING = (
    "rl.kl.estimator=k3 with rl.kl.placement=reward has a heavy tail, by which one rare token can outweigh the rest; "
    "take k1, or set rl.kl.allow_k3_in_reward=true."
)


def test_config_warns_beside_the_recipe(demo_recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", demo_recipe, *K3_IN_REWARD]) == 0
    out, error = capsys.readouterr()
    assert error == f"megarl: warning: {K3_WARNING}\n"
    assert "warning" not in out


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        ([], True),
        (["rl.kl.allow_k3_in_reward=true"], False),
        (["rl.kl.estimator=k1"], False),
        (["rl.kl.placement=loss"], False),
        (["rl.kl.coefficient=0", "rl.kl.placement=loss"], False),
        (["rl.steps=0"], False),
    ],
)
def test_k3_in_the_reward_is_warned_of(overrides: list[str], warned: bool, demo_recipe: str) -> None:
    recipe = load_recipe(demo_recipe, [*K3_IN_REWARD, *overrides]).recipe
    assert warnings_of(recipe) == ([K3_WARNING] if warned else [])


def test_config_looks_at_the_options_of_the_source(demo_recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", demo_recipe, "data.options.tems=3"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.endswith("data.options.tems=3 is no option of chain_arithmetic; did you mean terms?\n")
    assert main(["config", demo_recipe, "data.options.first={a: 1}"]) == 2
    assert "is not a range" in capsys.readouterr().err


def test_docs_go_with_overrides_behind_them(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", write("a.yaml", ""), "--docs", "seed=2"]) == 0
    assert "# Seed of every named random generator.\nseed: 2 " in capsys.readouterr().out


def test_a_user_error_in_main_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "no/such.yaml"]) == 2
    assert capsys.readouterr().err == (
        "megarl: error: The recipe no/such.yaml cannot be read: No such file or directory; check the path.\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["trian"],
        ["train"],
        ["train", "a.yaml", "--docs"],
        ["config", "a.yaml", "--nope"],
        ["doctor", "seed=1"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: megarl" in capsys.readouterr().err


def test_a_missing_recipe_is_all_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train"])
    assert capsys.readouterr().err.endswith("error: the following arguments are required: RECIPE\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"megarl {__version__}\n"

"""Every recipe of recipes/ loads, and runs to its end when it is cut down to two steps a phase."""

from pathlib import Path

import pytest

from megarl.config.load import load_recipe
from tests.forked_runs import finished
from tests.runs import REPOSITORY, metrics

pytestmark = pytest.mark.parallel

# presets are parts of recipes, and have tests of their own
PATHS = [path for path in (REPOSITORY / "recipes").rglob("*.yaml") if path.parent.name != "presets"]
RECIPES = sorted(path.relative_to(REPOSITORY).as_posix() for path in PATHS)

SHORT = (
    "sft.steps=2",
    "sft.batch_size=4",
    "sft.micro_batch_size=4",
    "sft.optimizer.warmup_steps=0",
    "rl.steps=2",
    "rl.prompts_per_step=2",
    "rl.samples_per_prompt=2",
    "rl.micro_batch_size=4",
    "rl.optimizer.warmup_steps=0",
    "data.eval_prompts=2",
    "evaluate.samples_per_prompt=2",
    "evaluate.ks=[1,2]",
)


def test_recipes_are_found() -> None:
    """The demo is among them: an empty list would make the other tests vacuous."""
    assert "recipes/demo/grpo_arithmetic.yaml" in RECIPES


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_loads(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is valid as it stands, read from the repository's root."""
    monkeypatch.chdir(REPOSITORY)
    assert load_recipe(recipe).recipe.rl.steps > 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_runs(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm start, evaluation, RL and evaluation, to a saved model."""
    monkeypatch.chdir(REPOSITORY)
    if load_recipe(recipe).recipe.data.source == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    run = finished([recipe, *SHORT, f"output_dir={tmp_path / 'run'}"])
    assert run.returncode == 0, run.stderr
    assert [(line["phase"], line["step"]) for line in metrics(tmp_path / "run")] == [
        ("sft", 1),
        ("sft", 2),
        ("rl", 1),
        ("rl", 2),
    ]
    assert (tmp_path / "run/model/model.safetensors").exists()

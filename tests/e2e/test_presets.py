"""Every preset goes on top of the demo's recipe, and trains two steps under it."""

import json
import subprocess
from pathlib import Path

import pytest

from megarl.config.load import load_recipe
from tests.forked_runs import finished
from tests.runs import RECIPE, REPOSITORY, TINY, metrics

pytestmark = pytest.mark.presets

PRESETS = sorted(path.stem for path in (REPOSITORY / "recipes/presets").glob("*.yaml") if path.stem != "common")
# Sections that are the recipe's own: what is trained, on what, and where it goes.
NOT_A_PRESETS = (
    "model",
    "tokenizer",
    "parallel",
    "precision",
    "data",
    "reward",
    "sft",
    "rollout",
    "evaluate",
    "output_dir",
    "seed",
)
STEPS = 2
# divides an update of any size
ONE_BY_ONE = "rl.micro_batch_size=1"


def on_the_demo(name: str, folder: Path) -> str:
    """A recipe in `folder` that puts the preset on top of the demo's."""
    path = folder / f"{name}.yaml"
    path.write_text(f"defaults: [{REPOSITORY / RECIPE}, {REPOSITORY}/recipes/presets/{name}.yaml]\n")
    return str(path)


def run(recipe: str, folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """A tiny run of the recipe: four prompts of four responses as long as the demo's, so that some are right."""
    sizes = [setting for setting in TINY if not setting.startswith(("sft.", "rl.micro_batch_size", "rollout."))]
    short = ["sft.steps=0", f"rl.steps={STEPS}", ONE_BY_ONE, "evaluate.samples_per_prompt=0"]
    return finished([recipe, *sizes, *short, f"output_dir={folder / 'run'}", *overrides])


def test_presets_are_found() -> None:
    """An empty list would make the other tests vacuous."""
    assert {"grpo", "dapo", "gspo", "reinforce_pp"} <= set(PRESETS)
    assert len(PRESETS) >= 12


@pytest.mark.parametrize("name", PRESETS)
def test_preset_loads_on_the_demo(name: str, tmp_path: Path) -> None:
    """It changes the algorithm and nothing else."""
    demo, preset = load_recipe(REPOSITORY / RECIPE), load_recipe(on_the_demo(name, tmp_path))
    assert preset.tree["rl"] != demo.tree["rl"]
    for section in NOT_A_PRESETS:
        assert preset.tree[section] == demo.tree[section], section


@pytest.mark.parametrize("name", PRESETS)
def test_preset_inherits_no_algorithm(name: str, tmp_path: Path) -> None:
    """On top of a recipe that sets every key of the algorithm to something else, it is the same."""
    odd = tmp_path / "odd.yaml"
    odd.write_text(
        "rl: {updates_per_step: 2, gamma: 0.5, advantage: gae, "
        "critic: {warmup_steps: 1, optimizer: {lr: 0.5, eps: 0.1}}, objective: {name: k2_5, "
        "ratio_low: 0.5, tau: 0.5, cov_share: 0.5, cov_low: 0.5, cov_high: 0.7, beta: 0.5, "
        "normalisation: seq_mean_token_sum_norm, normalisation_constant: 5}, "
        "kl: {coefficient: 0.5, estimator: k2, cap: 2.0, importance_weighted: true, target: 0.5, "
        "horizon: 5, allow_k3_in_reward: true}, "
        "entropy: {coefficient: 0.5, alarm_share: 0.5, alarm_action: raise_clip, alarm_clip_factor: 1.5, "
        "alarm_clip_max: 0.5}, overlong: {buffer_tokens: 3, penalty: 0.5, filter: true}, "
        "correction: {mode: bypass, weighting: icepop, low: 0.6, veto: 0.01}, "
        "dynamic_sampling: {enabled: true, max_batches: 3}}\n"
    )
    plain = load_recipe(REPOSITORY / f"recipes/presets/{name}.yaml", [ONE_BY_ONE])
    both = tmp_path / "both.yaml"
    both.write_text(f"defaults: [odd.yaml, {REPOSITORY}/recipes/presets/{name}.yaml]\nrl: {{micro_batch_size: 1}}\n")
    assert load_recipe(both).tree["rl"] == plain.tree["rl"]


@pytest.mark.parametrize("name", PRESETS)
def test_preset_trains(name: str, tmp_path: Path) -> None:
    """Two steps, to a saved model, with its own objective and advantage."""
    preset = load_recipe(REPOSITORY / f"recipes/presets/{name}.yaml", [ONE_BY_ONE]).recipe.rl
    trained = run(on_the_demo(name, tmp_path), tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert [(line["phase"], line["step"]) for line in metrics(tmp_path / "run")] == [("rl", 1), ("rl", 2)]
    assert all(line["policy/grad_norm"] > 0 for line in metrics(tmp_path / "run")), "it trained on nothing"
    assert (tmp_path / "run/model/model.safetensors").exists()
    ran = json.loads((tmp_path / "run/run.json").read_text())["recipe"]["rl"]
    assert ran["objective"]["name"] == preset.objective.name
    assert (ran["advantage"], ran["updates_per_step"]) == (preset.advantage, preset.updates_per_step)


def test_dynamic_sampling_fills_the_batch(tmp_path: Path) -> None:
    """It draws more problems than it keeps, and no kept group is uniform."""
    trained = run(on_the_demo("dapo", tmp_path), tmp_path, "rl.dynamic_sampling.max_batches=50")
    assert trained.returncode == 0, trained.stderr
    lines = metrics(tmp_path / "run")
    assert all(line["rollout/problems_drawn"] >= 4 and line["rollout/problems_drawn"] % 4 == 0 for line in lines)
    assert any(line["rollout/problems_drawn"] > 4 for line in lines)
    samples = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    assert samples
    assert all(sample["advantage"] != 0 for sample in samples)


def test_dynamic_sampling_that_runs_dry_says_so(tmp_path: Path) -> None:
    """One token is never enough for an answer: every response is worth 0."""
    dry = run(on_the_demo("dapo", tmp_path), tmp_path, "rollout.max_new_tokens=1", "rl.dynamic_sampling.max_batches=3")
    assert dry.returncode == 2
    assert dry.stderr == (
        "megarl: error: rl.dynamic_sampling.max_batches=3 batches gave 0 of the 4 prompts whose responses differ in "
        "reward; take problems that the policy solves sometimes, in a new output_dir; this run's state was saved.\n"
    )
    assert list((tmp_path / "run/checkpoints").glob("1-rl-*"))

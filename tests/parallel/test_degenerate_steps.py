"""Whole RL steps on degenerate rollouts: they end, their metrics are finite, and one of them counts what was there."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from megarl.config.load import load_recipe
from tests.forked_runs import train
from tests.parallel.world import run_world
from tests.runs import RECIPE, undocumented

pytestmark = pytest.mark.parallel

COMMON = (
    "model.init_from=tests/data/base",
    "reward.name=tests.parallel.degenerate_steps_worker.is_odd",
    "sft.steps=0",
    "rl.steps=3",
    "rl.prompts_per_step=4",
    "rl.samples_per_prompt=4",
    "rl.micro_batch_size=4",
    "rl.optimizer.warmup_steps=0",
    "rollout.max_new_tokens=16",
)
RELATIVE = 1e-4
"""fp32 sums in another order differ by about 1e-6; some metrics are differences of such sums."""
DECOUPLED, BYPASS = "rl.correction.mode=decoupled", "rl.correction.mode=bypass"
NO_KL = "rl.kl.coefficient=0"
STEADY = (NO_KL, "rl.entropy.coefficient=0")
CRITIC = ("rl.advantage=gae",)
CUT = ("rollout.max_new_tokens=3", "reward.name=boxed_answer")
"""Too short for an answer: every response is truncated, and every reward is 0."""
FILTERED = (*CUT, "rl.overlong.filter=true")
NARROW = ("rl.correction.reject_geometric=[0.9,1.1]", *STEADY)


def case(plant: str, *overrides: str, steps: int = 1) -> dict[str, Any]:
    return {"plant": plant, "overrides": list(overrides), "steps": steps}


LOSSY = {
    "no correction": (),
    "dppo_tv": ("rl.objective={name: dppo_tv, clip_low: null, clip_high: null}",),
    "decoupled_ppo": ("rl.objective.name=decoupled_ppo",),
    "tis": (DECOUPLED, "rl.correction.weighting=tis"),
    "rejections, kept": (
        DECOUPLED,
        "rl.correction={reject_token: [0.5, 2], reject_sequence: [0.1, 10], reject_k3: 1, veto: 1e-4}",
        "rl.correction.normalise=kept",
    ),
    "opsm": (DECOUPLED, "rl.correction.opsm=1e-4", "rl.updates_per_step=2"),
    "bypass": (BYPASS,),
    "bypass, rejections": (BYPASS, "rl.correction={reject_geometric: [0.5, 2], veto: 1e-4, opsm: 1e-4}"),
    "bypass, tis": (
        BYPASS,
        "rl.correction.weighting=tis",
        "rl.objective={name: reinforce, clip_low: null, clip_high: null}",
    ),
    "gae": (*CRITIC, DECOUPLED, "rl.correction.weighting=icepop"),
}
LOSING_ALL = ("no correction", "dppo_tv", "tis", "rejections, kept", "bypass")
CASES = {
    **{f"lose some, {name}": case("lose some", *overrides) for name, overrides in LOSSY.items()},
    **{f"lose all, {name}": case("lose all", *STEADY, *LOSSY[name]) for name in LOSING_ALL},
    "say nothing often": case("say nothing often"),
    "say nothing often, gae": case("say nothing often", *CRITIC),
    "say nothing often, reinforce_pp": case("say nothing often", "rl.advantage=reinforce_pp"),
    "say nothing": case("say nothing", steps=2),
    "say nothing, gae": case("say nothing", *CRITIC, DECOUPLED, "rl.correction.weighting=tis"),
    "end at once": case("end at once"),
    "end at once, gae": case("end at once", *CRITIC),
    "end at once, bypass": case("end at once", BYPASS),
    "filtered": case("nothing", *FILTERED, "rl.updates_per_step=2", steps=2),
    "filtered, gae": case("nothing", *FILTERED, *CRITIC),
    "filtered, tis": case("nothing", *FILTERED, DECOUPLED, "rl.correction.weighting=tis"),
    "uniform": case("nothing", *CUT, *STEADY),
    "uniform, kl and entropy": case("nothing", *CUT, "rl.kl.coefficient=0.1", "rl.entropy.coefficient=0.01", steps=2),
    "rejected": case("shift", DECOUPLED, *NARROW),
    "rejected, kept": case("shift", DECOUPLED, *NARROW, "rl.correction.normalise=kept"),
    "rejected, bypass": case("shift", BYPASS, *NARROW),
    "rejected, kl and entropy": case(
        "shift", DECOUPLED, *NARROW, "rl.kl.coefficient=0.1", "rl.entropy.coefficient=0.01"
    ),
}
LEFT_WITH_NOTHING = {
    "say nothing": 1,
    "say nothing, gae": 1,
    "filtered": 2,
    "filtered, gae": 1,
    "filtered, tis": 1,
    "rejected, kept": 1,
}
"""Their updates a step."""
LAYOUTS = {"one": 1, "dp2": 2}
RESPONSES = 16
K_HATS = {"drift/pareto_k", "drift/token_pareto_k"}
"""Shapes of a tail: that of rounding is another where sums are formed in another order."""
Found = dict[str, dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """Layout to case to what rank 0 saw."""
    target = "tests.parallel.degenerate_steps_worker:steps"
    # loaded here, once for both worlds: it takes longer than a step
    cases = {
        name: (given["plant"], given["steps"], load_recipe(RECIPE, [*COMMON, *given["overrides"]]).recipe)
        for name, given in CASES.items()
    }
    return {
        layout: run_world(target, nprocs, {"cases": cases}, 240, folder / layout)[0]
        for layout, nprocs in LAYOUTS.items()
    }


def last(found: Found, layout: str, name: str) -> dict[str, float]:
    metrics: dict[str, float] = found[layout][name]["metrics"][-1]
    return metrics


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_every_metric_and_every_weight_is_finite(name: str, layout: str, found: Found, folder: Path) -> None:
    steps = found[layout][name]["metrics"]
    assert len(steps) == CASES[name]["steps"]
    for metrics in steps:
        assert [key for key, value in metrics.items() if not math.isfinite(value)] == []
    assert math.isfinite(found[layout][name]["moved"])
    lines = (folder / layout / name / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(steps) and not any("nonfinite" in json.loads(line) for line in lines)


@pytest.mark.parametrize("name", CASES)
def test_every_metric_is_documented(name: str, found: Found) -> None:
    assert [undocumented(metrics) for metrics in found["one"][name]["metrics"]] == [[]] * CASES[name]["steps"]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_do_as_one(name: str, found: Found) -> None:
    one, two = found["one"][name], found["dp2"][name]
    assert {key: two[key] for key in ("tokens", "lost", "truncated")} == {
        key: one[key] for key in ("tokens", "lost", "truncated")
    }
    for ours, theirs in zip(one["metrics"], two["metrics"], strict=True):
        assert ours.keys() - K_HATS == theirs.keys() - K_HATS
        for key, value in ours.items():
            if not key.startswith(("seconds/", "tokens_per_s/")) and key not in K_HATS:
                assert theirs[key] == pytest.approx(value, rel=RELATIVE, abs=1e-5), key


@pytest.mark.parametrize(
    ("plant", "name"), [*(("lose some", name) for name in LOSSY), *(("lose all", name) for name in LOSING_ALL)]
)
def test_lost_log_probs_are_counted(plant: str, name: str, found: Found) -> None:
    result, metrics = found["one"][f"{plant}, {name}"], last(found, "one", f"{plant}, {name}")
    lost, tokens = sum(result["lost"]), sum(result["tokens"])
    assert (metrics["drift/tokens"], metrics["drift/tokens_without_log_prob"]) == (tokens, lost)
    assert lost == tokens if plant == "lose all" else 0 < lost < tokens
    assert ("drift/abs_mean" in metrics) == (plant == "lose some")
    counted = {"no correction": None, "dppo_tv": "policy/unusable_share", "decoupled_ppo": "policy/unusable_share"}
    share = counted.get(name, "correction/unusable_share")
    if share is not None:
        # over two updates or kept tokens only, the mean is not that of the step's tokens
        assert metrics[share] == pytest.approx(lost / tokens, rel=1e-6)
    if plant == "lose some":
        assert found["one"][f"{plant}, {name}"]["moved"] > 0 and metrics["policy/grad_norm"] > 0
    elif name == "rejections, kept":
        assert metrics["policy/empty_updates"] == 1 and metrics["response/untrained_share"] == 1
    elif share is not None:
        assert metrics["policy/grad_norm"] == 0 and result["moved"] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_correction_lost_log_probs_change_nothing(layout: str, found: Found) -> None:
    """An objective that does not read them trains on every token."""
    some, every = (last(found, layout, f"lose {what}, no correction") for what in ("some", "all"))
    assert some["policy/grad_norm"] == pytest.approx(every["policy/grad_norm"], rel=RELATIVE)
    assert some["policy/grad_norm"] > 0


@pytest.mark.parametrize("name", ["", ", gae", ", reinforce_pp"])
def test_responses_without_a_token(name: str, found: Found) -> None:
    result, metrics = found["one"][f"say nothing often{name}"], last(found, "one", f"say nothing often{name}")
    assert result["tokens"].count(0) == RESPONSES / 2
    assert metrics["response/untrained_share"] == 0.5
    assert metrics["response/tokens_mean"] == sum(result["tokens"]) / RESPONSES == metrics["drift/tokens"] / RESPONSES
    assert metrics["policy/empty_updates"] == 0 and metrics["policy/grad_norm"] > 0


@pytest.mark.parametrize(("name", "updates"), LEFT_WITH_NOTHING.items())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_of_which_nothing_is_left_changes_nothing(name: str, updates: int, layout: str, found: Found) -> None:
    result, metrics = found[layout][name], last(found, layout, name)
    assert result["moved"] == 0
    assert metrics["policy/empty_updates"] == updates and metrics["response/untrained_share"] == 1
    assert not [key for key in metrics if key.startswith("policy/") and key != "policy/empty_updates"]
    critic = {key: value for key, value in metrics.items() if key.startswith("critic/")}
    assert critic.keys() == ({"critic/empty_updates", "critic/lr"} if "gae" in name else set())
    assert critic.get("critic/empty_updates", 1) == 1
    if name.startswith("filtered"):
        assert all(result["truncated"]) and metrics["response/truncated_share"] == 1


@pytest.mark.parametrize("name", ["end at once", "end at once, gae", "end at once, bypass"])
def test_responses_of_the_end_token_alone(name: str, found: Found) -> None:
    result, metrics = found["one"][name], last(found, "one", name)
    assert result["tokens"].count(1) >= RESPONSES / 2
    assert metrics["drift/tokens_without_log_prob"] == RESPONSES / 2
    assert metrics["response/untrained_share"] == 0 and metrics["policy/grad_norm"] > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_uniform_groups_have_no_policy_gradient(layout: str, found: Found) -> None:
    result, metrics = found[layout]["uniform"], last(found, layout, "uniform")
    assert metrics["reward/uniform_groups_share"] == 1
    assert metrics["policy/grad_norm"] == 0 and metrics["policy/loss"] == 0 and result["moved"] == 0
    first, second = found[layout]["uniform, kl and entropy"]["metrics"]
    assert first["reward/uniform_groups_share"] == second["reward/uniform_groups_share"] == 1
    assert first["policy/grad_norm"] > 0, "the entropy bonus has a gradient"
    assert first["kl/coefficient_abs"] == pytest.approx(0, abs=1e-5) and second["kl/coefficient_abs"] > 1e-4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["rejected", "rejected, bypass"])
def test_rejected_responses_have_no_policy_gradient(name: str, layout: str, found: Found) -> None:
    result, metrics = found[layout][name], last(found, layout, name)
    assert metrics["reward/uniform_groups_share"] < 1, "there would be a gradient without the rejection"
    assert metrics["correction/kept_share"] == 0 and "correction/weight_mean" not in metrics
    assert metrics["policy/grad_norm"] == 0 and result["moved"] == 0
    assert metrics["policy/empty_updates"] == 0, "dropped tokens stay in the denominator"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rejected_responses_keep_their_kl_and_entropy(layout: str, found: Found) -> None:
    metrics = last(found, layout, "rejected, kl and entropy")
    assert metrics["correction/kept_share"] == 0 and metrics["policy/grad_norm"] > 0


def test_a_run_that_has_nothing_to_learn_from_says_so_and_ends(tmp_path: Path) -> None:
    off = ("sft.steps=0", "evaluate.samples_per_prompt=0", "checkpoint.every=0")
    finished = train(f"output_dir={tmp_path / 'run'}", *off, *FILTERED, "rl.steps=10")
    assert finished.returncode == 0, finished.stderr
    assert (
        "for 10 steps there was nothing to learn from; in the last of them no response had a token left"
        in finished.stdout
    )
    assert json.loads((tmp_path / "run/summary.json").read_text())["rl"]["steps"] == 10

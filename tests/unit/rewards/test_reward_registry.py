import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megarl.config.data import DataConfig, RewardConfig
from megarl.config.errors import RecipeError
from megarl.config.names import KNOWN_REWARDS
from megarl.config.schema import Recipe
from megarl.data.problem import Problem
from megarl.rewards.boxed import boxed_answer
from megarl.rewards.exact import exact
from megarl.rewards.reasoning_gym_reward import ReasoningGymReward
from megarl.rewards.registry import REWARDS, build_reward, score

PROBLEM = Problem("training/7", "2+3=", "5")


def build(name: str, **keys: Any) -> Any:
    return build_reward(Recipe(reward=RewardConfig(name), **keys))


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_rewards.py").write_text(
        "def length(response, problem):\n    return len(response) / len(problem.answer)\n\n"
        "def words(response, problem):\n    return response.split()\n\nLIMIT = 3\n"
    )
    (tmp_path / "users_syntax.py").write_text("def f(:\n")
    (tmp_path / "users_raises.py").write_text("raise RuntimeError('no\\nlicence')\n")
    (tmp_path / "users_exits.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "users_broken.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "users_rewards"


def test_registry_is_what_recipes_may_name() -> None:
    assert tuple(REWARDS) == KNOWN_REWARDS


def test_registered_rewards() -> None:
    assert build("boxed_answer") is boxed_answer
    assert build("exact") is exact


def test_reasoning_gym_scores_its_own_source_only() -> None:
    with pytest.raises(RecipeError, match=r"cannot score data.source=chain_arithmetic; set data.source=reasoning_gym"):
        build("reasoning_gym")
    pytest.importorskip("reasoning_gym")
    data = DataConfig(source="reasoning_gym", options={"task": "chain_sum"})
    assert isinstance(build("reasoning_gym", data=data), ReasoningGymReward)


def test_dotted_path_gets_response_and_problem(user_module: str) -> None:
    reward = build(f"{user_module}.length")
    assert score(reward, "abc", PROBLEM) == 3.0
    assert score(pickle.loads(pickle.dumps(reward)), "ab", PROBLEM) == 2.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("boxed", ["reward.name=boxed", "boxed_answer, exact, reasoning_gym"]),
        ("a..b", ["a..b", "dotted path"]),
        ("no_such_module.f", ["names the module no_such_module", "PYTHONPATH"]),
        ("users_broken.f", ["names the module users_broken", "No module named 'no_such_package'"]),
        ("users_syntax.f", ["names the module users_syntax", "SyntaxError", "line 1", "mend the module"]),
        ("users_raises.f", ["RuntimeError: no licence", "mend the module"]),
        ("users_exits.f", ["SystemExit: 3", "mend the module"]),
        ("math.sqrt", ["reward.name=", "cannot be called with a response and a problem"]),
        ("users_rewards.lenght", ["names lenght in the module users_rewards, which is not there"]),
        ("users_rewards.LIMIT", ["names LIMIT in the module users_rewards, which is not callable"]),
    ],
)
def test_refused_names(user_module: str, name: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        build(name)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize("value", [1, 0.25, True, -3.5, np.float32(0.5), np.int64(2)])
def test_numbers_become_floats(value: Any) -> None:
    result = score(lambda response, problem: value, "", PROBLEM)
    assert type(result) is float
    assert result == value


@pytest.mark.parametrize("value", [None, "1", [1.0], 1j])
def test_what_is_no_number_is_the_rewards_bug(value: Any) -> None:
    def careless(response: str, problem: Problem) -> Any:
        return value

    with pytest.raises(TypeError, match=r"careless returned .* for problem training/7, not a number"):
        score(careless, "", PROBLEM)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan")])
def test_what_is_not_finite_is_the_rewards_bug(value: Any) -> None:
    with pytest.raises(ValueError, match=r"returned .* for problem training/7, not a finite number"):
        score(lambda response, problem: value, "", PROBLEM)


@pytest.mark.parametrize("value", [1.01e12, -1e30, 1e300, 10**30])
def test_what_fp32_has_no_room_for_is_the_rewards_bug(value: Any) -> None:
    with pytest.raises(ValueError, match=r"returned .* for problem training/7, beyond 1e\+12 either way: scale it"):
        score(lambda response, problem: value, "", PROBLEM)
    assert score(lambda response, problem: -1e12, "", PROBLEM) == -1e12


def test_an_error_in_a_users_reward_is_not_hidden(user_module: str) -> None:
    reward = build(f"{user_module}.length")
    with pytest.raises(ZeroDivisionError):
        score(reward, "a", Problem("p", "?", ""))


def test_a_users_reward_is_named_in_its_errors(user_module: str) -> None:
    with pytest.raises(TypeError, match=r"words returned \['a'\] for"):
        score(build(f"{user_module}.words"), "a", PROBLEM)

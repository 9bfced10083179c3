"""The soft overlong penalty, and groups without a spread."""

import pytest

from megarl.config.objective import OverlongConfig
from megarl.data.problem import Problem
from megarl.loop.rollouts import Rollouts, overlong_penalty, uniform_groups

# tokens of a response that may have 20, with a buffer of 8 -> share of the penalty (2503.14476, eq. 13)
SHARES = {0: 0.0, 1: 0.0, 12: 0.0, 13: 0.125, 16: 0.5, 19: 0.875, 20: 1.0, 25: 1.0}


@pytest.mark.parametrize("tokens", SHARES)
def test_the_penalty_rises_over_the_buffer(tokens: int) -> None:
    config = OverlongConfig(buffer_tokens=8, penalty=0.5)
    assert overlong_penalty(tokens, 20, config) == pytest.approx(0.5 * SHARES[tokens], abs=1e-12)


@pytest.mark.parametrize("tokens", [1, 20])
def test_no_buffer_is_no_penalty(tokens: int) -> None:
    assert overlong_penalty(tokens, 20, OverlongConfig(buffer_tokens=0, penalty=1.0)) == 0


def problems(ids: str) -> list[Problem]:
    """One problem a letter."""
    return [Problem(id, prompt="", answer="") for id in ids]


@pytest.mark.parametrize(
    ("ids", "rewards", "count"),
    [
        ("aabb", [1, 1, 0, 1], 1),
        ("aabb", [0, 0, 1, 1], 2),
        ("aabb", [0, 1, 1, 0], 0),
        # groups are by identity: a stride of two would find two uniform ones here
        ("abab", [1, 0, 1, 0], 2),
        ("abba", [1, 0, 0, 1], 2),
        ("abba", [1, 1, 0, 1], 1),
        # a group of one has nothing to differ from
        ("ab", [1, 0], 0),
        ("", [], 0),
    ],
)
def test_uniform_groups_are_counted_by_prompt(ids: str, rewards: list[float], count: int) -> None:
    assert uniform_groups(problems(ids), rewards) == count


def test_taking_rows_keeps_the_columns_together() -> None:
    kept = Rollouts(problems_drawn=7)
    rewards, task_rewards = [0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]
    drawn = Rollouts(problems("aabb"), [], list("wxyz"), rewards, task_rewards, problems_drawn=2)
    kept.take(drawn, slice(2, 4))
    kept.take(drawn, slice(0, 2))
    assert [problem.id for problem in kept.problems] == list("bbaa")
    assert (kept.texts, kept.rewards) == (list("yzwx"), [2.0, 3.0, 0.0, 1.0])
    assert kept.task_rewards == [6.0, 7.0, 4.0, 5.0]
    assert kept.rewards_B.tolist() == [2.0, 3.0, 0.0, 1.0]
    assert kept.problems_drawn == 7

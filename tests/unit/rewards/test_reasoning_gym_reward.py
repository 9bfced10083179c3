import logging
from typing import Any

import pytest

from megarl.config.data import DataConfig
from megarl.data.problem import Problem
from megarl.data.reasoning_gym_source import ReasoningGymSource, make_dataset
from megarl.rewards.reasoning_gym_reward import ReasoningGymReward


def reward_and_problem(**options: Any) -> tuple[ReasoningGymReward, Problem]:
    pytest.importorskip("reasoning_gym")
    source = ReasoningGymSource(0, DataConfig(eval_prompts=4, options=options))
    return ReasoningGymReward(options), source.training(0)


def test_last_box_or_the_whole_response_is_scored() -> None:
    reward, problem = reward_and_problem(task="chain_sum")
    answer = problem.answer
    assert reward(f"\\boxed{{1}} no, \\boxed{{ {answer} }}", problem) == 1.0
    assert reward(f" {answer}\n", problem) == 1.0
    assert reward(f"\\boxed{{{answer}}} no, \\boxed{{1}}", problem) == 0.0
    assert reward(f"it is {answer}", problem) == 0.0
    assert reward("", problem) == 0.0


def test_partial_scores_are_worth_nothing() -> None:
    options = {"task": "gcd"}
    reward, problem = reward_and_problem(**options)
    wrong = f"{problem.answer}1"
    assert 0 < make_dataset(options, 0, 1).score_answer(f"x {problem.answer} x", problem.metadata["entry"]) < 1
    assert reward(f"x {problem.answer} x", problem) == 0.0
    assert reward(f"\\boxed{{{wrong}}}", problem) == 0.0


def test_every_demonstration_is_worth_one() -> None:
    options = {"task": "number_sequence"}
    pytest.importorskip("reasoning_gym")
    source, reward = ReasoningGymSource(0, DataConfig(eval_prompts=4, options=options)), ReasoningGymReward(options)
    for index in range(50):
        problem, response = source.demonstration(index, 0.0)
        assert reward(response, problem) == 1.0


def test_scorer_that_raises_is_worth_nothing_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    reward, problem = reward_and_problem(task="prime_factorization")
    assert reward(problem.answer, problem) == 1.0
    with caplog.at_level(logging.WARNING):
        assert reward("\\boxed{junk}", problem) == 0.0
        assert reward("\\boxed{junk}", problem) == 0.0
    assert [record.message for record in caplog.records if "prime_factorization" in record.message] == [
        "the scorer of prime_factorization raised ValueError(\"invalid literal for int() with base 10: 'junk'\") "
        "on the answer 'junk'; such answers are worth 0"
    ]

"""Reasoning Gym's own scorers."""

import logging
from collections.abc import Mapping
from typing import Any

from megarl.data.problem import Problem
from megarl.data.reasoning_gym_source import make_dataset
from megarl.rewards.boxed import last_boxed


class ReasoningGymReward:
    """1.0 where the task's scorer gives its full score, else 0.0.

    Scored is the last \\boxed{...}, or the whole response where there is none, surrounding space aside. Scores below
    1 are worth nothing, since tasks give some of them to wrong answers.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Makes the scorer.

        Args:
            options: `data.options` of the recipe.

        Raises:
            UserError: the package is missing.
            RecipeError: the task or its options cannot be.
        """
        self._task = options.get("task")
        self._dataset = make_dataset(options, seed=0, size=1)
        self._raised: set[type[Exception]] = set()

    def __call__(self, response: str, problem: Problem) -> float:
        """The reward of a response to a problem of the same task, whose metadata holds the 'entry'."""
        entry = problem.metadata["entry"]
        box = last_boxed(response)
        answer = (response if box is None else box).strip()
        try:
            score = self._dataset.score_answer(answer, entry)
        # some scorers raise on answers that they cannot parse, each task its own errors
        except Exception as error:
            self._report(error, answer)
            return 0.0
        return float(score >= 1)

    def _report(self, error: Exception, answer: str) -> None:
        if type(error) not in self._raised:
            self._raised.add(type(error))
            logging.getLogger(__name__).warning(
                "the scorer of %s raised %r on the answer %.80r; such answers are worth 0", self._task, error, answer
            )

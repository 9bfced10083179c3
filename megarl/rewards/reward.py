"""What a reward is: a function of the response's text and the problem."""

from typing import Protocol

from megarl.data.problem import Problem


class Reward(Protocol):
    """Scores one response. Raises nothing for bad responses: they are worth 0."""

    def __call__(self, response: str, problem: Problem) -> float:
        """The reward, usually in [0, 1]; `response` holds no end or padding token."""

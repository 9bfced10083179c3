"""The whole response against the reference answer."""

from megarl.data.problem import Problem


def exact(response: str, problem: Problem) -> float:
    """1.0 if the response is the reference answer, surrounding space aside, else 0.0."""
    return float(response.strip() == problem.answer.strip())

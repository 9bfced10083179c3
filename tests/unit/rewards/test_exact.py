import pytest

from megarl.data.problem import Problem
from megarl.rewards.exact import exact


@pytest.mark.parametrize(
    ("response", "answer", "worth"),
    [("True", "True", 1.0), (" a b\n", "a b", 1.0), ("a  b", "a b", 0.0), ("5.0", "5", 0.0), ("", "5", 0.0)],
)
def test_exact(response: str, answer: str, worth: float) -> None:
    assert exact(response, Problem("p", "?", answer)) == worth

"""Ages of tokens, by hand."""

import pytest

from megarl.loop.staleness import staleness_metrics
from megarl.rollout import Completion, Request, VersionSpan


def written(*spans: tuple[int, int, int]) -> Completion:
    length = spans[-1][2] if spans else 0
    request = Request("p", 0, (1,), "rl/0")
    return Completion(request, (2,) * length, (-1.0,) * length, "stop", tuple(VersionSpan(*span) for span in spans))


def test_ages_are_counted_by_token() -> None:
    found = staleness_metrics([written((5, 0, 4)), written((3, 0, 1), (4, 1, 3), (5, 3, 4)), written()], 5, bound=2)
    # of eight tokens one is two updates old and two are one old
    assert found == {
        "staleness/mean": (2 + 1 + 1) / 8,
        "staleness/max": 2.0,
        "staleness/older_tokens_share": 3 / 8,
        "staleness/spanning_share": 1 / 3,
    }


def test_responses_without_a_token_have_no_age() -> None:
    assert set(staleness_metrics([written()], 5, bound=0).values()) == {0.0}


@pytest.mark.parametrize("version", [1, 6])
def test_a_token_out_of_bounds_ends_the_run(version: int) -> None:
    with pytest.raises(RuntimeError, match="not 0 to 3"):
        staleness_metrics([written((5, 0, 2)), written((version, 0, 1))], 5, bound=3)

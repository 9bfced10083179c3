"""Bounds are crossed on the side where their measure is bad, and nowhere else."""

import pytest

from megarl.drift.bounds import crossings


@pytest.mark.parametrize(
    ("name", "bound", "passes", "crosses", "words"),
    [
        ("abs_p99", 0.1, (0.0, 0.1), (0.11, 1.8e308), "abs_p99=0.11 is above 0.1"),
        ("ess_share", 0.5, (0.5, 1.0), (0.49, 0.0), "ess_share=0.49 is below 0.5"),
        ("k1", [-0.1, 0.2], (-0.1, 0.0, 0.2), (0.21, -0.11), "k1=0.21 is outside [-0.1, 0.2]"),
        ("replica_1/k3", 0, (0.0,), (1e-12,), "replica_1/k3=1e-12 is above 0"),
    ],
)
def test_the_bad_side(
    name: str, bound: float | list[float], passes: tuple[float, ...], crosses: tuple[float, ...], words: str
) -> None:
    assert [crossings({name: bound}, {name: value}) for value in passes] == [[]] * len(passes)
    found = [crossings({name: bound}, {name: value}) for value in crosses]
    assert [[crossing.name for crossing in each] for each in found] == [[name]] * len(crosses)
    assert str(found[0][0]) == words


def test_what_was_not_measured_crosses_nothing() -> None:
    assert crossings({"pareto_k": 0.7, "abs_mean": 0.1}, {"abs_mean": 0.2, "k3": 9.0})[0].name == "abs_mean"
    assert crossings({"pareto_k": 0.7}, {"abs_mean": 0.2}) == []

"""The bootstrap finds what is there, and not much more."""

from pathlib import Path

import numpy as np
import pytest

from megarl.config.errors import UserError
from megarl.dumps.compare import compare
from megarl.dumps.differences import UNITS, differences
from megarl.dumps.errors import DumpError
from megarl.dumps.measured import Measured, measured
from megarl.dumps.open import open_dump
from megarl.dumps.statistics import statistics
from tests.unit.dumps.made import rows, write


def dump(path: Path, *, drift: float = 0.1, name: str = "a", count: int = 64) -> Path:
    return write(path, rows([3 + index % 5 for index in range(count)], drift=drift, name=name))


def made(folder: Path, **how) -> Measured:
    return measured(open_dump(dump(folder / "a.parquet", **how)))


def test_each_sides_measures_are_those_of_its_report(tmp_path: Path) -> None:
    side = made(tmp_path)
    numbers = statistics(side)
    found = {row.name: row.first for row in differences(side, side, 100, 0)}
    assert found.keys() == UNITS.keys()
    same = {
        "mean |Delta|": "abs_mean",
        "outside 0.9 to 1.1": "outside_band_share",
        "|Delta| above ln 2": "abs_above_ln2_share",
        "k1 of KL(engine, trainer)": "k1",
        "k3 of KL(engine, trainer)": "k3",
        "mean |sum of Delta|": "sequence_sum_abs_mean",
        "effective sample size": "ess_share",
    }
    for name, measure in same.items():
        assert found[name] == pytest.approx(numbers[measure], rel=1e-10), name


def test_twice_the_drift_is_found(tmp_path: Path) -> None:
    rows_found = {row.name: row for row in differences(made(tmp_path), made(tmp_path, drift=0.2, name="b"), 500, 0)}
    drift = rows_found["mean |Delta|"]
    assert drift.differs and drift.low > 0 and drift.p_value == pytest.approx(2 / 501)
    assert drift.low < drift.second - drift.first < drift.high
    assert not rows_found["reward"].differs


def test_resamples_without_the_largest_weight_have_an_effective_size_too(tmp_path: Path) -> None:
    """Its weight, e^1200 times the others', leaves nothing of theirs; some third of the resamples is without it."""
    held = rows([3] * 16)
    held["old_log_probs"][0] = np.zeros(3, np.float32)
    held["rollout_log_probs"][0] = np.full(3, -400.0, np.float32)
    side = measured(open_dump(write(tmp_path / "heavy.parquet", held)))
    found = {row.name: row for row in differences(side, made(tmp_path), 200, 0)}["effective sample size"]
    assert found.first == pytest.approx(1 / 16, rel=1e-12)
    assert -1 <= found.low <= found.high <= 1


def test_alike_dumps_differ_about_as_often_as_they_should(tmp_path: Path) -> None:
    """With 95 % intervals of 40 pairs more than 8 false alarms have a probability of 1e-4 (binomial, 0.05).

    Percentile intervals of 64 responses cover somewhat less than 95 %; at 0.08 it would still be below 1 %.
    """
    sides = [made(tmp_path, name=str(seed)) for seed in range(80)]
    pairs = zip(sides[::2], sides[1::2], strict=True)
    alarms = sum(differences(a, b, 200, seed)[0].differs for seed, (a, b) in enumerate(pairs))
    assert alarms <= 8


def test_the_seed_decides_the_resamples(tmp_path: Path) -> None:
    sides = made(tmp_path), made(tmp_path, name="b")
    assert differences(*sides, 200, 1) == differences(*sides, 200, 1)
    assert differences(*sides, 200, 1) != differences(*sides, 200, 2)


def test_two_tokenizers_are_not_compared(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", rows())
    second = write(tmp_path / "b.parquet", rows(), tokenizer="b" * 64)
    with pytest.raises(DumpError, match="different tokenizers"):
        compare(first, second, resamples=100, seed=0)


def test_too_little_for_a_bootstrap(tmp_path: Path) -> None:
    few = write(tmp_path / "a.parquet", rows())
    with pytest.raises(DumpError, match="has 4 responses to compare, and a bootstrap needs 8"):
        compare(few, few, resamples=100, seed=0)
    with pytest.raises(UserError, match="--resamples=99 is too few"):
        compare(few, few, resamples=99, seed=0)


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = dump(tmp_path / "a.parquet"), dump(tmp_path / "b.parquet", drift=0.4, name="b")
    unknown = rows([4] * 16)
    unknown["reward"] = [np.nan] * 16
    compare(first, second, resamples=200, seed=0)
    out = capsys.readouterr().out
    assert "64 and 64 responses. They differ in mean |Delta|" in out
    # nothing is cut short in the 80 columns of a pipe
    assert f"second: {second}" in out and "…" not in out
    compare(first, first, resamples=200, seed=0)
    assert "No difference is beyond chance." in capsys.readouterr().out
    compare(first, write(tmp_path / "c.parquet", unknown), resamples=200, seed=0)
    assert "reward" not in capsys.readouterr().out

"""Labels of the report's figures."""

import math

import pytest

from megarl.dumps.report.drawing import MOST_LABELS, ratio_ticks


@pytest.mark.parametrize("reach", (1e-9, 1e-6, 5e-4, 1e-3, 0.004, 0.03, 0.1, 0.5, 0.69, 0.7, 1.7, 2.4, 5.0, 12.0, 30.0))
def test_ratios_are_labelled_where_they_are(reach: float) -> None:
    ticks = ratio_ticks(reach)
    assert 3 <= len(ticks) <= MOST_LABELS and len(set(ticks.values())) == len(ticks)
    assert "1" in ticks.values()
    for place, label in ticks.items():
        # the ratio is rounded
        assert abs(place) <= reach + 2.0**-52
        # '1+2e-06' is a sum; of six digits the last is off by at most half a unit
        difference = float(label[1:]) if label[1:2] in ("+", "-") else float(label) - 1
        assert math.isclose(math.expm1(place), difference, rel_tol=1e-5, abs_tol=1e-15)

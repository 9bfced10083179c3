"""bf16, fp16 and emulated FP8 under tensor, sequence, pipeline and data parallelism."""

import pytest
from torch import Tensor

from tests.parallel.precision_worker import LAYOUTS
from tests.parallel.world import run_world

pytestmark = pytest.mark.parallel

SHARED = [name for name in LAYOUTS if name != "alone"]
Results = list[dict[str, dict[str, Tensor]]]


@pytest.fixture(scope="module")
def results() -> Results:
    """By rank; world size 1 is the last."""
    target = "tests.parallel.precision_worker:run"
    return [*run_world(target, 2, timeout_s=200), *run_world(target, 1, timeout_s=120)]


@pytest.mark.parametrize("layout", SHARED)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_16_bits_are_world_size_1s(dtype: str, layout: str, results: Results) -> None:
    """Up to the unit of rounding, some ten times a layer: sums over ranks are rounded where one rank's are not."""
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11}[dtype]
    wanted, got = results[-1][f"alone, {dtype}"], results[0][f"{layout}, {dtype}"]
    assert wanted.keys() == got.keys()
    for name, tensor in wanted.items():
        assert (got[name] - tensor).norm() <= 20 * unit * tensor.norm(), name


@pytest.mark.parametrize("layout", SHARED)
def test_mxfp8_is_world_size_1s(layout: str, results: Results) -> None:
    """Its blocks of 32 are no rank's alone, so the layout changes no scale.

    Sums in another order move a few values over a rounding boundary, by a unit of 1/8, and what comes after with them:
    hence in the mean, and far below the 3 % that a product's rounding is off by.
    """
    wanted, got = results[-1]["alone, mxfp8"], results[0][f"{layout}, mxfp8"]
    assert wanted.keys() == got.keys()
    for name, tensor in wanted.items():
        assert (got[name] - tensor).norm() <= 5e-3 * tensor.norm(), name


@pytest.mark.parametrize("layout", ["tp2", "tp2 + sequence", "dp2"])
def test_delayed_scales_are_all_ranks(layout: str, results: Results) -> None:
    """The largest value of a tensor is that of all its parts."""
    first, second = (results[rank][f"{layout}, delayed"] for rank in (0, 1))
    alone = results[-1]["alone, delayed"]
    scales = [name for name in alone if name.startswith("scale ")]
    assert len(scales) == 3 * 4 * 2
    for name in scales:
        assert first[name] == second[name], name
        if "weight" in name:
            assert first[name] == alone[name], name

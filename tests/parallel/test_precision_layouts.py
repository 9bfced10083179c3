"""bf16, fp16 and emulated FP8 under tensor, sequence, pipeline and data parallelism."""

import pytest
from torch import Tensor

from tests.parallel.precision_worker import LAYOUTS, MOE_LAYOUTS
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


@pytest.mark.parametrize("layout", [name for name in MOE_LAYOUTS if name != "alone"])
def test_experts_in_mxfp8_are_world_size_1s(layout: str, results: Results) -> None:
    """As dense layers are: scales are powers of two, so what shares a block moves its smallest values alone."""
    wanted, got = results[-1]["alone, mxfp8, MoE"], results[0][f"{layout}, mxfp8, MoE"]
    assert wanted.keys() == got.keys() and any(".experts." in name for name in wanted)
    for name, tensor in wanted.items():
        assert (got[name] - tensor).norm() <= 5e-3 * tensor.norm(), name


@pytest.mark.parametrize("layout", ["dp2", "ep2"])
def test_experts_in_tensorwise_fp8_are_near_world_size_1s(layout: str, results: Results) -> None:
    """A scale is over the tokens that an expert gets at once, which the layout changes.

    In either run each of a product's two operands is off by at most half a unit of E4M3, 1/16.
    """
    wanted, got = results[-1]["alone, tensorwise, MoE"], results[0][f"{layout}, tensorwise, MoE"]
    for name, tensor in wanted.items():
        assert (got[name] - tensor).norm() <= 4 / 16 * tensor.norm(), name


def test_an_expert_without_tokens_has_no_gradient(results: Results) -> None:
    """The batch leaves one out; its products of no rows are defined under every recipe."""
    for run in (result for rank in results for name, result in rank.items() if name.endswith(", MoE")):
        gradient = run["gradient of model.layers.1.mlp.experts.7.down_proj.weight"]
        assert not gradient.any() and run["gradient of model.layers.1.mlp.gate.weight"].isfinite().all()


@pytest.mark.parametrize("layout", [name for name in MOE_LAYOUTS if name != "alone"])
def test_delayed_scales_of_experts_are_all_ranks(layout: str, results: Results) -> None:
    """Experts that the ranks hold in the same place share a history, as in Transformer Engine."""
    first, second = (results[rank][f"{layout}, delayed, MoE"] for rank in (0, 1))
    scales = [name for name in first if name.startswith("scale ") and "local_experts" in name]
    # three tensors of two layers
    assert len(scales) == 3 * 2 * (8 if layout == "dp2" else 4)
    assert all(first[name] == second[name] for name in scales)

"""The gradient of one fixed batch does not depend on the layout, on micro-batches or on the order of the rows' work.

Context parallelism is not covered: the trainer has none.
"""

from typing import Any

import pytest
from torch import Tensor

from tests.parallel.gradient_worker import OBJECTIVE_MODES
from tests.parallel.world import run_world

pytestmark = pytest.mark.parallel

RELATIVE = 1e-5
LAYOUTS: dict[str, dict[str, Any]] = {"dp2": {}, "tp2": {"tensor": 2}, "pp2": {"pipeline": 2}}


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Tensor]]:
    """World size 1, in micro-batches of 8, 2 and 1 rows."""
    args = {"layouts": {"one": {}}, "micro_batch_sizes": [8, 2, 1]}
    results: dict[str, dict[str, Tensor]] = run_world("tests.parallel.gradient_worker:gradients", 1, args, 200)[0]
    return results


@pytest.fixture(scope="module")
def split() -> dict[str, dict[str, Tensor]]:
    """Two ranks, in micro-batches of 4 and 1 rows."""
    args = {"layouts": LAYOUTS, "micro_batch_sizes": [4, 1]}
    results: dict[str, dict[str, Tensor]] = run_world("tests.parallel.gradient_worker:gradients", 2, args, 300)[0]
    return results


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Relative to each tensor's largest entry: single entries of a sum may cancel to nothing."""
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (got[name] - tensor).abs().max() <= RELATIVE * tensor.abs().max(), name
    assert any(tensor.abs().max() > 0 for tensor in wanted.values())


@pytest.mark.parametrize(("name", "mode"), OBJECTIVE_MODES)
def test_micro_batches(name: str, mode: str, alone: dict[str, dict[str, Tensor]]) -> None:
    """Micro-batches of unequal token counts, one of them without a trained token."""
    for size in (2, 1):
        assert_same(alone[f"one micro-batch {size} {name} {mode}"], alone[f"one micro-batch 8 {name} {mode}"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "mode"), OBJECTIVE_MODES)
def test_layouts(
    layout: str, name: str, mode: str, alone: dict[str, dict[str, Tensor]], split: dict[str, dict[str, Tensor]]
) -> None:
    """Data, tensor and pipeline parallelism."""
    for size in (4, 1):
        assert_same(split[f"{layout} micro-batch {size} {name} {mode}"], alone[f"one micro-batch 8 {name} {mode}"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_critic(layout: str, alone: dict[str, dict[str, Tensor]], split: dict[str, dict[str, Tensor]]) -> None:
    """The critic's values, and the loss and gradient norm of its update."""
    wanted = alone["one micro-batch 8 critic"]
    assert wanted["norm"].min() > 0
    for got in (alone["one micro-batch 2 critic"], *(split[f"{layout} micro-batch {size} critic"] for size in (4, 1))):
        assert_same(got, wanted)

"""The gradient of one fixed batch does not depend on the layout, on micro-batches or on how sequences are packed."""

from typing import Any

import pytest
from torch import Tensor

from tests.parallel.gradient_worker import EVERY, MIXED, OBJECTIVE_MODES, WHOLE
from tests.parallel.world import run_world

pytestmark = pytest.mark.parallel

RELATIVE = 1e-5
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {},
    "tp2": {"tensor": 2},
    "tp2 sequence": {"tensor": 2, "sequence": True},
    "pp2": {"pipeline": 2},
    "cp2": {"context": 2},
}
ALONE = ("rows 2", "rows 1", "packed 24", "packed 40", MIXED)
"""Micro-batches of world size 1, beside the whole batch at once. The longest row has 17 tokens."""
SPLIT = ("rows 2", MIXED)
"""Micro-batches of two ranks: several rows in each, then rows packed in another order."""


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Tensor]]:
    """World size 1."""
    args = {"layouts": {"one": {}}, "micro_batches": [WHOLE, *ALONE]}
    results: dict[str, dict[str, Tensor]] = run_world("tests.parallel.gradient_worker:gradients", 1, args, 200)[0]
    return results


@pytest.fixture(scope="module")
def split() -> dict[str, dict[str, Tensor]]:
    """Two ranks."""
    args = {"layouts": LAYOUTS, "micro_batches": SPLIT}
    results: dict[str, dict[str, Tensor]] = run_world("tests.parallel.gradient_worker:gradients", 2, args, 500)[0]
    return results


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Relative to each tensor's largest entry: single entries of a sum may cancel to nothing."""
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (got[name] - tensor).abs().max() <= RELATIVE * tensor.abs().max(), name
    assert any(tensor.abs().max() > 0 for tensor in wanted.values())


@pytest.mark.parametrize("micro_batches", ALONE)
@pytest.mark.parametrize(("name", "mode"), OBJECTIVE_MODES)
def test_micro_batches(name: str, mode: str, micro_batches: str, alone: dict[str, dict[str, Tensor]]) -> None:
    """Micro-batches of unequal token counts, one of them without a trained token; rows padded, packed, reordered."""
    assert_same(alone[f"one {micro_batches} {name} {mode}"], alone[f"one {WHOLE} {name} {mode}"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "mode"), OBJECTIVE_MODES)
def test_layouts(
    layout: str, name: str, mode: str, alone: dict[str, dict[str, Tensor]], split: dict[str, dict[str, Tensor]]
) -> None:
    """Data, tensor, sequence, pipeline and context parallelism."""
    for micro_batches in SPLIT:
        assert_same(split[f"{layout} {micro_batches} {name} {mode}"], alone[f"one {WHOLE} {name} {mode}"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "mode"), EVERY)
def test_every_objective_under_every_mode(
    layout: str, name: str, mode: str, alone: dict[str, dict[str, Tensor]], split: dict[str, dict[str, Tensor]]
) -> None:
    """Packed in another order, on two ranks: all of the above at once."""
    assert_same(split[f"{layout} {MIXED} {name} {mode}"], alone[f"one {WHOLE} {name} {mode}"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_critic(layout: str, alone: dict[str, dict[str, Tensor]], split: dict[str, dict[str, Tensor]]) -> None:
    """The critic's values, and the loss and gradient norm of its update."""
    wanted = alone[f"one {WHOLE} critic"]
    assert wanted["norm"].min() > 0
    for micro_batches in ALONE:
        assert_same(alone[f"one {micro_batches} critic"], wanted)
    for micro_batches in SPLIT:
        assert_same(split[f"{layout} {micro_batches} critic"], wanted)

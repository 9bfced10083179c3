"""The planner's bytes, held and sent, against those of real models, buffers, optimizers and updates."""

from typing import Any

import pytest

from megarl.plan.activations import head_bytes, in_flight, recomputed_bytes, stage_bytes
from megarl.plan.communication import data_bytes, step_bytes
from megarl.plan.shape import Batch, Layout, Numerics, Shape
from megarl.plan.state import trained_state
from tests.parallel.plan_worker import MICRO, PROMPT, ROWS, TOKENS, VOCAB
from tests.parallel.world import run_world

pytestmark = pytest.mark.parallel

SHAPE = Shape(layers=4, hidden=48, ffn=112, heads=4, groups=2, head_dim=16, vocab=VOCAB)
# what is left out: a loss's and a norm's few numbers, beside small models; indices of the router's choices
RELATIVE = 0.005
RELATIVE_WITH_EXPERTS = 0.03

LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"parallel": {}},
    "tp2": {"parallel": {"tensor": 2}},
    "tp2, sequence": {"parallel": {"tensor": 2, "sequence": True}},
    "tp2, one group, untied": {"parallel": {"tensor": 2}, "model": {"num_query_groups": 1, "tie_embeddings": False}},
    "pp2": {"parallel": {"pipeline": 2}},
    "cp2": {"parallel": {"context": 2}},
    "dp2, packed": {"parallel": {}, "packed": 2 * TOKENS},
    "cp2, packed": {"parallel": {"context": 2}, "packed": TOKENS},
    "dp2, core attention again": {"parallel": {}, "recompute": "core_attention"},
    "tp2, layers again": {"parallel": {"tensor": 2}, "recompute": "full"},
    "pp2, layers again": {"parallel": {"pipeline": 2}, "recompute": "full"},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    f"{'bf16' if bf16 else 'fp32'}{', distributed' if distributed else ''}": {"bf16": bf16, "distributed": distributed}
    for bf16 in (False, True)
    for distributed in (False, True)
} | {"experts": {"bf16": False, "distributed": False, "experts": 4}}


@pytest.fixture(scope="module")
def measured() -> list[dict[str, dict[str, int]]]:
    """Of each rank, each case's bytes."""
    args = {"layouts": LAYOUTS, "optimizers": OPTIMIZERS}
    return run_world("tests.parallel.plan_worker:measure_all", 2, args, timeout_s=120)


def shape_of(model: dict[str, Any]) -> Shape:
    return Shape(
        **{**vars(SHAPE), "groups": model.get("num_query_groups", 2), "tied": model.get("tie_embeddings", True)}
    )


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_takes_what_the_plan_says(name: str, measured: list[dict[str, dict[str, int]]]) -> None:
    case = LAYOUTS[name]
    shape, layout = shape_of(case.get("model", {})), Layout(world=2, **case["parallel"])
    numerics = Numerics(recompute=case.get("recompute", "none"))
    trained = MICRO * (TOKENS + 1 - PROMPT)
    packed = "packed" in case
    batch = Batch(
        rows=1 if packed else MICRO,
        tokens=MICRO * TOKENS if packed else TOKENS,
        longest=TOKENS,
        trained=trained // layout.context,
        count=ROWS // MICRO,
        packed=packed,
    )
    for rank, found in enumerate(measured):
        stage = rank if layout.pipeline > 1 else 0
        state, real = trained_state(shape, layout, numerics, stage), found[name]
        assert {**vars(state)} == {part: real[part] for part in ("weights", "gradients", "optimizer")}
        head = head_bytes(shape, layout, numerics, batch) if stage == layout.pipeline - 1 else 0
        again = recomputed_bytes(shape, layout, numerics, batch, stage)
        saved = in_flight(shape, layout, numerics, batch, stage) + max(head, again)
        assert saved == pytest.approx(real["saved"], rel=RELATIVE)
        sent = sum(step_bytes(shape, layout, numerics, batch, stage).values())
        assert sent == pytest.approx(real["sent"], rel=RELATIVE)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_what_the_plan_says(name: str, measured: list[dict[str, dict[str, int]]]) -> None:
    case = OPTIMIZERS[name]
    shape = SHAPE
    if "experts" in case:
        shape = Shape(**{**vars(SHAPE), "experts": 4, "experts_per_token": 2, "expert_ffn": 56})
    layout = Layout(world=2, distributed_optimizer=case["distributed"])
    numerics = Numerics(compute=2 if case["bf16"] else 4)
    batch = Batch(rows=MICRO, tokens=TOKENS, longest=TOKENS, trained=0)
    state = trained_state(shape, layout, numerics)
    relative = RELATIVE_WITH_EXPERTS if shape.experts else RELATIVE
    for found in measured:
        assert (state.weights, state.gradients) == (found[name]["weights"], found[name]["gradients"])
        assert state.optimizer == pytest.approx(found[name]["optimizer"], rel=relative)
        assert stage_bytes(shape, layout, numerics, batch) == pytest.approx(found[name]["saved"], rel=relative)
        assert data_bytes(shape, layout, numerics) == pytest.approx(found[name]["sent"], rel=relative)

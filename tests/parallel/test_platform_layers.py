"""The platform on two gloo ranks, against one rank and against float64."""

import pytest

from tests.parallel.world import run_world

pytestmark = pytest.mark.parallel

WORKER = "tests.parallel.platform_worker:"
# float32's rounding over a sum of some tens of terms of size 1.
ATTENTION_TOLERANCE = 1e-5
# Relative to the largest entry of each gradient.
GRADIENT_TOLERANCE = 1e-5


def test_attention_over_context_parallel_ranks_equals_the_formula() -> None:
    layouts = {"batch": [0, 16], "packed": [0, 4, 16, 24], "one packed": [0, 8]}
    for errors in run_world(WORKER + "attention_and_collectives", 2, {"layouts": layouts}, timeout_s=120):
        assert errors.pop("refusal").startswith("a sequence of 6 tokens does not divide by 4")
        assert len(errors) == 4 * len(layouts) + 3
        assert {case: error for case, error in errors.items() if not error < ATTENTION_TOLERANCE} == {}
        assert errors["all_to_all"] == errors["all_gather"] == errors["reduce_scatter"] == 0


def test_sequence_parallel_model_equals_one_rank_and_its_checkpoint() -> None:
    for errors in run_world(WORKER + "tensor_parallel_model", 2, timeout_s=120):
        assert errors.pop("checkpoint") == 0
        assert errors.pop("loss") < 1e-5
        assert len(errors) == 17
        assert {name: error for name, error in errors.items() if not error < GRADIENT_TOLERANCE} == {}

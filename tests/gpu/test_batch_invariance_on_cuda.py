"""Whether batch-invariant arithmetic keeps its bits on a GPU, which recipes are refused until it is known to."""

from typing import Any

import pytest

from megarl.config.precision import PrecisionConfig
from megarl.megatron.world import Layout
from tests.unit.megatron.test_batch_invariance import MODELS, PRECISIONS, all_ways, recipe_of


@pytest.mark.parametrize("precision", [PRECISIONS["fp32"], PRECISIONS["bf16"]], ids=["fp32", "bf16"])
@pytest.mark.parametrize("keys", MODELS.values(), ids=list(MODELS))
def test_bits_are_the_same_in_every_company(layout: Layout, keys: dict[str, Any], precision: PrecisionConfig) -> None:
    first, *others = all_ways(recipe_of(keys, precision), layout)
    for other in others:
        assert other == first

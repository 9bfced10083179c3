"""Experts' tokens under FP8: Megatron-core pads each expert's rows to what Transformer Engine takes."""

import pytest
import torch

from megarl.config.precision import FP8Config
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout
from tests.unit.megatron.moe import moe_recipe
from tests.unit.megatron.tiny import VOCAB, noisy_weights

# isort: split
# after megarl.megatron, which prepares torch for it
from megatron.core.transformer.moe.experts import SequentialMLP


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", "blockwise", "mxfp8"])
def test_each_expert_gets_whole_blocks_of_rows(layout: Layout, recipe: str) -> None:
    """megatron.core's own padding, switched on as its configuration of Transformer Engine's FP8 would."""
    tiny = moe_recipe()
    policy = Policy(tiny, layout, VOCAB)
    policy.load(noisy_weights(tiny.model))
    experts = next(module for module in policy.models[0].modules() if isinstance(module, SequentialMLP))
    counts = torch.tensor([5, 0, 33, 32])
    tokens = torch.randn(int(counts.sum()), tiny.model.hidden_size, generator=torch.Generator().manual_seed(0))
    probs = torch.rand(len(tokens), generator=torch.Generator().manual_seed(1))
    seen: list[int] = []
    for expert in experts.local_experts:
        expert.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    with torch.no_grad():
        wanted, _ = experts(tokens, counts, probs)
        assert seen == counts.tolist()
        seen.clear()
        # the experts alone: the blocks around them would look for Transformer Engine
        experts.config.fp8, experts.config.fp8_recipe = "e4m3", recipe
        got, _ = experts(tokens, counts, probs)
    size = FP8Config(recipe=recipe).alignment
    assert seen == [-(-count // size) * size for count in counts.tolist()]
    torch.testing.assert_close(got, wanted)

"""The norm, the fused linear layer and the spec."""

from typing import Any

import pytest
import torch

from megarl.platform.layers.norm_linear import LayerNormColumnParallelLinear
from megarl.platform.layers.rms_norm import RMSNorm, rms_norm
from megarl.platform.layers.spec import gpt_block_spec
from tests.unit.platform.reference import tiny_batch, tiny_config, tiny_gpt

pytestmark = pytest.mark.usefixtures("world_of_one")


def test_rms_norm_equals_the_formula() -> None:
    x = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(1)) * 3
    weight = torch.rand(16, generator=torch.Generator().manual_seed(2))
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-6).double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rms_norm(x.double(), weight.double(), 1e-6), expected, rtol=1e-14, atol=1e-14)


def test_rms_norm_of_bfloat16_is_computed_in_float32() -> None:
    x = (torch.randn(4, 64, generator=torch.Generator().manual_seed(1)) * 100).bfloat16()
    weight = torch.rand(64, generator=torch.Generator().manual_seed(2)).bfloat16()
    wide = rms_norm(x.float(), weight.float(), 1e-6)
    assert torch.equal(rms_norm(x, weight, 1e-6), wide.bfloat16())


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_norm_weight_carries_the_sequence_parallel_mark(sequence_parallel: bool) -> None:
    config = tiny_config()
    config.sequence_parallel = sequence_parallel
    norm = RMSNorm(config, hidden_size=32, eps=1e-6)
    assert vars(norm.weight)["sequence_parallel"] is sequence_parallel
    assert norm.weight.dtype == config.params_dtype


def test_zero_centred_weight_is_refused() -> None:
    config = tiny_config()
    config.layernorm_zero_centered_gamma = True
    with pytest.raises(ValueError, match="layernorm_zero_centered_gamma"):
        RMSNorm(config, hidden_size=32)


def test_fused_layer_normalises_then_multiplies() -> None:
    config = tiny_config()
    layer = LayerNormColumnParallelLinear(
        32,
        48,
        config=config,
        init_method=config.init_method,
        bias=True,
        gather_output=False,
        skip_bias_add=False,
        is_expert=False,
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(6, 2, 32, generator=generator)
    output, bias = layer(x)
    normed = rms_norm(x.double(), layer.layer_norm_weight.double(), 1e-6)
    expected = normed @ layer.weight.double().T + layer.bias.double()
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    assert bias is None
    assert {name for name, _ in layer.named_parameters()} == {"weight", "bias", "layer_norm_weight"}


def test_fused_layer_refuses_other_norms() -> None:
    config = tiny_config(normalization="LayerNorm")
    with pytest.raises(ValueError, match="normalization='LayerNorm'"):
        LayerNormColumnParallelLinear(32, 48, config=config, init_method=config.init_method)


def test_state_dict_has_transformer_engine_names() -> None:
    names = {name for name, _ in tiny_gpt(tiny_config(num_layers=1)).named_parameters()}
    layer = "decoder.layers.0."
    assert names == {
        "embedding.word_embeddings.weight",
        layer + "self_attention.linear_qkv.layer_norm_weight",
        layer + "self_attention.linear_qkv.weight",
        layer + "self_attention.linear_qkv.bias",
        layer + "self_attention.linear_proj.weight",
        layer + "mlp.linear_fc1.layer_norm_weight",
        layer + "mlp.linear_fc1.weight",
        layer + "mlp.linear_fc2.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "qk_norm": {"qk_layernorm": True},
    "layer_norm": {"normalization": "LayerNorm"},
    "experts": {
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_token_dispatcher_type": "alltoall",
        "moe_ffn_hidden_size": 64,
    },
    "recompute": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_of_a_model_learns(variant: str) -> None:
    model = tiny_gpt(tiny_config(**VARIANTS[variant]))
    tokens, positions, labels = tiny_batch()
    model(tokens, positions, None, labels=labels).mean().backward()
    silent = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert silent == []
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_query_and_key_norms_are_ours() -> None:
    block = gpt_block_spec(tiny_config(qk_layernorm=True))
    model = tiny_gpt(tiny_config(qk_layernorm=True))
    assert block.layer_norm is RMSNorm
    assert isinstance(model.decoder.layers[0].self_attention.q_layernorm, RMSNorm)


def test_future_tokens_do_not_change_the_past() -> None:
    model = tiny_gpt(tiny_config()).eval()
    tokens, positions, _ = tiny_batch()
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 64
    first, second = model(tokens, positions, None), model(changed, positions, None)
    assert torch.equal(first[:, :10], second[:, :10])
    assert not torch.equal(first[:, 10:], second[:, 10:])

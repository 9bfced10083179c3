"""The layers that a GPT model is built from on this platform."""

from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe import moe_utils

from megarl.platform.layers.attention import CoreAttention
from megarl.platform.layers.fp32_residual import fp32_bias_dropout_add
from megarl.platform.layers.invariant import (
    InvariantAttention,
    InvariantNormColumnParallelLinear,
    InvariantRMSNorm,
    InvariantRowParallelLinear,
    invariant_rotary,
)
from megarl.platform.layers.norm_linear import LayerNormColumnParallelLinear
from megarl.platform.layers.rms_norm import RMSNorm
from megarl.platform.platform import current, has_transformer_engine


def gpt_block_spec(config: Any, vp_stage: int | None = None, *, local: bool = False) -> Any:
    """Megatron's decoder block spec: Transformer Engine's on CUDA where it is installed, the local one elsewhere.

    The local one is Megatron's own with `CoreAttention`, and for RMSNorm with the norms fused into the linear layers
    as Transformer Engine fuses them, so that both give the same state dict. A config that `make_invariant` has marked
    gets the batch-invariant layers in all places instead.

    Args:
        config: Megatron's TransformerConfig.
        vp_stage: stage of an interleaved pipeline; None without one.
        local: the local one in any case.

    Returns:
        megatron.core's TransformerBlockSubmodules.
    """
    is_invariant = invariant_rotary(config) is not None
    if not local and not is_invariant and current().name == "cuda" and has_transformer_engine():
        return get_gpt_decoder_block_spec(
            config, use_transformer_engine=True, normalization=config.normalization, vp_stage=vp_stage
        )
    if config.num_moe_experts and not hasattr(moe_utils, "te_general_gemm"):
        # Megatron-core 0.16 reads this name without Transformer Engine, but sets it only with it.
        moe_utils.te_general_gemm = None
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    for layer in block.layer_specs:
        _submodules(layer.submodules.self_attention).core_attention = CoreAttention
        if config.fp32_residual_connection:
            layer.submodules.self_attn_bda = layer.submodules.mlp_bda = fp32_bias_dropout_add
    if config.normalization == "RMSNorm":
        block.layer_norm = RMSNorm
        for layer in block.layer_specs:
            _use_rms_norm(layer.submodules, config)
    if is_invariant:
        block.layer_norm = InvariantRMSNorm
        for layer in block.layer_specs:
            _use_invariant(layer.submodules, config)
    return block


def _use_rms_norm(layer: Any, config: Any) -> None:
    """Swaps a layer's norms; the one of an MoE layer's router stays apart, as in Transformer Engine's spec."""
    attention, mlp = _submodules(layer.self_attention), _submodules(layer.mlp)
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    attention.linear_qkv, layer.input_layernorm = LayerNormColumnParallelLinear, IdentityOp
    if isinstance(mlp, MLPSubmodules):
        mlp.linear_fc1, layer.pre_mlp_layernorm = LayerNormColumnParallelLinear, IdentityOp
    else:
        layer.pre_mlp_layernorm = RMSNorm


def _use_invariant(layer: Any, config: Any) -> None:
    """Swaps all that computes in a dense layer of RMSNorms."""
    attention, mlp = _submodules(layer.self_attention), _submodules(layer.mlp)
    attention.linear_qkv = mlp.linear_fc1 = InvariantNormColumnParallelLinear
    attention.linear_proj = mlp.linear_fc2 = InvariantRowParallelLinear
    attention.core_attention = InvariantAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = InvariantRMSNorm


def _submodules(spec: Any) -> Any:
    """A spec's submodules: Megatron-core 0.16 has ModuleSpec here, 0.19 has functools.partial."""
    return spec.submodules if hasattr(spec, "submodules") else spec.keywords["submodules"]

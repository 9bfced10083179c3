"""Builds Megatron-core's GPTModel from the recipe. The one place that constructs a model."""

import math
from typing import Any

import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from megarl.config.model import ModelConfig, ParallelConfig
from megarl.config.precision import PrecisionConfig
from megarl.megatron.expert_weights import keep_gradients_apart
from megarl.megatron.models import FAMILIES
from megarl.megatron.precision import set_token_alignment, transformer_options
from megarl.megatron.rope import llama3_frequencies, rotary_of
from megarl.megatron.router import with_own_router
from megarl.platform.fp8.linear import emulate_fp8
from megarl.platform.invariant import rows
from megarl.platform.layers.invariant import invariant_rotary, make_invariant
from megarl.platform.layers.spec import gpt_block_spec
from megarl.platform.platform import current


def padded_vocabulary(vocab_size: int, tensor_parallel: int) -> int:
    """Rows of the embedding: the vocabulary rounded up to a multiple of the tensor-parallel size."""
    return math.ceil(vocab_size / tensor_parallel) * tensor_parallel


FP32 = PrecisionConfig()


def transformer_config(
    model: ModelConfig, parallel: ParallelConfig, precision: PrecisionConfig = FP32
) -> TransformerConfig:
    """Megatron-core's configuration of the recipe's model."""
    config = TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        gated_linear_unit=True,
        activation_func=rows.silu if precision.batch_invariant else F.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **transformer_options(precision),
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual if parallel.virtual > 1 else None,
        pipeline_model_parallel_layout=_stage_layout(parallel),
        # with batched sends, interleaved stages on two ranks get each other's tensors, and wrong gradients
        overlap_p2p_comm=parallel.virtual > 1,
        batch_p2p_comm=parallel.virtual == 1,
        **_RECOMPUTE[parallel.recompute],
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor_size,
        sequence_parallel=parallel.sequence,
        # the weights come from `weights.py` under every layout; this keeps construction off the GPU's RNG, and without
        # any initialisation Megatron-core would not mark which parameters are sharded
        use_cpu_initialization=True,
        # the loss functions return sums, and finalize_model_grads divides by the global token count
        calculate_per_token_loss=True,
        # Apex's fused weight-gradient kernel, which neither torch nor TE ships
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        **FAMILIES[model.family].transformer_options(model),
    )
    set_token_alignment(config, precision)
    if precision.batch_invariant:
        make_invariant(config, rotary_of(model, current().device))
    return config


_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def _stage_layout(parallel: ParallelConfig) -> str | None:
    """Megarl's list of layers a stage, in Megatron-core's letters: embedding, transformer layer, loss."""
    if parallel.pipeline_layers is None:
        return None
    stages = ["t" * layers for layers in parallel.pipeline_layers]
    return f"E{'|'.join(stages)}L"


def build_model(
    model: ModelConfig,
    parallel: ParallelConfig,
    vocab_size: int,
    *,
    precision: PrecisionConfig = FP32,
    tie_embeddings: bool | None = None,
) -> list[GPTModel]:
    """This rank's stages of the model, on the platform's device, with weights still to be loaded.

    Args:
        model: its shape.
        parallel: its layout.
        vocab_size: tokens.
        precision: what it computes in. Its parameters are made in the dtype, so nothing is left for Megatron-core's
            Float16Module to convert, which would also give the output in fp32.
        tie_embeddings: instead of the recipe's, for a model with another output layer.

    Returns:
        One stage, or as many as the interleaved schedule has on a rank. The forward of each takes tokens [b, s],
        positions [b, s] and no mask (attention is causal) and returns, on the last stage and without labels, the
        vocabulary-parallel logits [b, s, V / tensor].
    """
    config = transformer_config(model, parallel, precision)
    tied = model.tie_embeddings if tie_embeddings is None else tie_embeddings
    numbers = [None] if parallel.virtual == 1 else list(range(parallel.virtual))
    built = [
        _build_stage(config, model, parallel, vocab_size, tied, number, precision.fp8.emulation) for number in numbers
    ]
    for stage in built:
        if parallel.expert_tensor_size != parallel.tensor:
            keep_gradients_apart(stage)
        if precision.fp8.emulation:
            emulate_fp8(stage.decoder, precision.fp8)
    return built


def _build_stage(
    config: TransformerConfig,
    model: ModelConfig,
    parallel: ParallelConfig,
    vocab_size: int,
    tied: bool,
    vp_stage: int | None,
    local_layers: bool,
) -> GPTModel:
    built = GPTModel(
        config,
        with_own_router(gpt_block_spec(config, vp_stage, local=local_layers)),
        vocab_size=padded_vocabulary(vocab_size, parallel.tensor),
        max_sequence_length=model.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        # batch-invariant attention turns queries and keys itself
        position_embedding_type="rope" if invariant_rotary(config) is None else "none",
        rotary_base=model.rope_theta,
        share_embeddings_and_output_weights=tied,
        parallel_output=True,
        vp_stage=vp_stage,
    )
    if model.rope_scaling == "llama3" and invariant_rotary(config) is None:
        # Megatron-core's own switch has the factor alone, and Llama 3.1's values for the rest
        rotary = built.rotary_pos_emb
        rotary.inv_freq = llama3_frequencies(rotary.inv_freq, model)
    return built.to(current().device)

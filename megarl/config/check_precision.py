"""Cross-field checks of the trainer's precision."""

import math
from collections.abc import Iterator

from megarl.config.refusal import refusal
from megarl.config.schema import Recipe


def loss_scale_starts_above_its_least(recipe: Recipe) -> None:
    """Loss scaling starts somewhere from which it can fall."""
    scale = recipe.precision.loss_scale
    if scale.least > scale.initial:
        reason = f"is above precision.loss_scale.initial={scale.initial:g}"
        raise refusal("precision.loss_scale.least", scale.least, reason, "give at most that")


def loss_scales_are_exact(recipe: Recipe) -> None:
    """A factor that is no power of two rounds every gradient, and doubling and halving keep it so."""
    scale = recipe.precision.loss_scale
    for name, value in (("initial", scale.initial), ("least", scale.least)):
        mantissa, exponent = math.frexp(value)
        if mantissa != 0.5:
            reason = "is no power of two, so that it rounds the gradients"
            raise refusal(f"precision.loss_scale.{name}", value, reason, f"give one, such as {2.0 ** (exponent - 1):g}")


def fp8_has_a_dtype_beside_it(recipe: Recipe) -> None:
    """FP8 saturates, which would hide an overflow from loss scaling; Transformer Engine's goes with bf16."""
    dtype, fp8 = recipe.precision.dtype, recipe.precision.fp8
    if fp8.enabled and dtype == "fp16":
        reason = f"scales the loss by overflows, which precision.fp8.recipe={fp8.recipe} saturates away"
        raise refusal("precision.dtype", dtype, reason, "set it to bf16")
    if fp8.enabled and not fp8.emulation and dtype != "bf16":
        reason = "is not what Transformer Engine's FP8 layers compute in beside FP8"
        raise refusal("precision.dtype", dtype, reason, "set it to bf16, or precision.fp8.emulation=true")


def fp8_divides_shape(recipe: Recipe) -> None:
    """Each rank's part of every linear layer must be a multiple of FP8's alignment, both ways."""
    fp8 = recipe.precision.fp8
    if not fp8.enabled:
        return
    for name, value, what, size in _layer_sizes(recipe):
        if size % fp8.alignment:
            reason = (
                f"{what + ' ' if what else ''}makes layers of {size}, which precision.fp8.recipe={fp8.recipe} cannot "
                f"cut into {fp8.alignment}s"
            )
            raise refusal(name, value, reason, f"give a multiple of {fp8.alignment} a rank")


def _layer_sizes(recipe: Recipe) -> Iterator[tuple[str, int, str, int]]:
    """Key, its value, what a rank's layer is made of beside it, and the rows or columns of that layer."""
    model, moe, parallel = recipe.model, recipe.model.moe, recipe.parallel
    tensor, heads = parallel.tensor, model.num_attention_heads // parallel.tensor
    over = f"over parallel.tensor={tensor}"
    yield "model.hidden_size", model.hidden_size, "", model.hidden_size
    if recipe.model.has_dense_layers:
        yield "model.ffn_hidden_size", model.ffn_hidden_size, over, model.ffn_hidden_size // tensor
    if moe.num_experts > 0:
        name = "parallel.tensor" if parallel.expert_tensor is None else "parallel.expert_tensor"
        split = parallel.expert_tensor_size
        yield "model.moe.ffn_hidden_size", moe.ffn_hidden_size, f"over {name}={split}", moe.ffn_hidden_size // split
    yield "model.head_dim", model.head_dim, f"times the {heads} query heads of a rank", model.head_dim * heads
    # queries, keys and values are one layer, which is split evenly also where ranks share a group
    what = f"key-value heads of size {model.head_dim} beside the {model.num_attention_heads} query heads {over}"
    yield "model.num_query_groups", model.num_query_groups, what, model.qkv_size // tensor


def fp8_weights_have_their_optimizer(recipe: Recipe) -> None:
    """Weights in FP8 alone live on the distributed optimizer's fp32 ones (Megatron-LM's fp8-param-gather)."""
    fp8 = recipe.precision.fp8
    if fp8.param and fp8.emulation:
        reason = "stores weights in FP8, and precision.fp8.emulation=true only rounds them"
        raise refusal("precision.fp8.param", True, reason, "set one of the two to false")
    if fp8.param and not recipe.parallel.distributed_optimizer:
        reason = "needs the distributed optimizer, which holds the fp32 weights"
        raise refusal("precision.fp8.param", True, reason, "set parallel.distributed_optimizer=true")


def frozen_model_has_scales(recipe: Recipe) -> None:
    """Transformer Engine fills the history of delayed scaling in training alone: a frozen model's scales stay at 1."""
    fp8, rl = recipe.precision.fp8, recipe.rl
    has_reference = rl.steps > 0 and (rl.measure_reference or rl.kl.coefficient > 0)
    if fp8.recipe == "delayed" and not fp8.emulation and has_reference:
        reason = "scales by the history of training, which the frozen reference does not have"
        fix = "choose another recipe, or set rl.measure_reference=false and rl.kl.coefficient=0"
        raise refusal("precision.fp8.recipe", fp8.recipe, reason, fix)


def batch_invariance_is_whole(recipe: Recipe) -> None:
    """Every operation between ids and log-probs has a batch-invariant form, on both sides; these have none."""
    if not recipe.precision.batch_invariant:
        return
    rollout = recipe.rollout
    lacking = (
        ("rollout.engine", rollout.engine, rollout.engine != "embedded", "embedded"),
        ("rollout.top_p", rollout.top_p, rollout.top_p < 1.0, "1"),
        ("rollout.top_k", rollout.top_k, rollout.top_k > 0, "0"),
        ("model.moe.num_experts", recipe.model.moe.num_experts, recipe.model.moe.num_experts > 0, "0"),
        ("precision.fp8.recipe", recipe.precision.fp8.recipe, recipe.precision.fp8.enabled, "none"),
    )
    for name, value, is_lacking, covered in lacking:
        if is_lacking:
            reason = "has no batch-invariant form, which precision.batch_invariant=true asks for"
            raise refusal(name, value, reason, f"set it to {covered}, or precision.batch_invariant=false")


PRECISION_CHECKS = (
    loss_scale_starts_above_its_least,
    loss_scales_are_exact,
    fp8_has_a_dtype_beside_it,
    fp8_divides_shape,
    fp8_weights_have_their_optimizer,
    frozen_model_has_scales,
    batch_invariance_is_whole,
)

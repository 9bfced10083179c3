"""The recipe's precision, in Megatron-core's words."""

from typing import Any

import torch
from megatron.core.fp8_utils import dequantize_fp8_tensor, get_fp8_align_size, is_float8tensor
from torch import Tensor

from megarl.config.precision import PrecisionConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ALIGNMENT = "megarl_token_alignment"


def transformer_options(precision: PrecisionConfig) -> dict[str, Any]:
    """Arguments of TransformerConfig. Emulated FP8 is none of its: Megatron-core would look for Transformer Engine."""
    dtype, fp8 = DTYPES[precision.dtype], precision.fp8
    options = {
        "params_dtype": dtype,
        # what stages exchange is the residual stream
        "pipeline_dtype": torch.float32 if precision.fp32_residual else dtype,
        "bf16": precision.dtype == "bf16",
        "fp16": precision.dtype == "fp16",
        "fp32_residual_connection": precision.fp32_residual,
    }
    if not fp8.enabled or fp8.emulation:
        return options
    return options | {
        "fp8": fp8.format,
        "fp8_recipe": fp8.recipe,
        "fp8_param": fp8.param,
        "fp8_amax_history_len": fp8.history,
        "fp8_amax_compute_algo": fp8.history_algorithm,
    }


def optimizer_options(precision: PrecisionConfig) -> dict[str, Any]:
    """Arguments of Megatron-core's OptimizerConfig; its main parameters and moments are fp32 by default."""
    fp8, scale = precision.fp8, precision.loss_scale
    return {
        "params_dtype": DTYPES[precision.dtype],
        "bf16": precision.dtype == "bf16",
        "fp16": precision.dtype == "fp16",
        "initial_loss_scale": scale.initial,
        "min_loss_scale": scale.least,
        "loss_scale_window": scale.window,
        "hysteresis": scale.hysteresis,
        "fp8_recipe": fp8.recipe if fp8.enabled and not fp8.emulation else None,
        "reuse_grad_buf_for_mxfp8_param_ag": fp8.param and fp8.recipe == "mxfp8",
    }


def gradient_buffer_options(precision: PrecisionConfig) -> dict[str, Any]:
    """Arguments of DistributedDataParallelConfig."""
    return {
        # looked at by the trainee itself, on all ranks together
        "check_for_nan_in_grad": False,
        "fp8_param_gather": precision.fp8.param,
        "reuse_grad_buf_for_mxfp8_param_ag": precision.fp8.param and precision.fp8.recipe == "mxfp8",
    }


def set_token_alignment(config: Any, precision: PrecisionConfig) -> None:
    """Notes on a TransformerConfig what a rank's tokens must divide by; `token_alignment` reads it."""
    setattr(config, _ALIGNMENT, precision.fp8.alignment)


def token_alignment(config: Any) -> int:
    """What a rank's tokens must divide by under this TransformerConfig, a user's own included."""
    alignment: int = getattr(config, _ALIGNMENT, get_fp8_align_size(config.fp8_recipe) if config.fp8 else 1)
    return alignment


def whole_precision(parameter: Tensor) -> Tensor:
    """A parameter's values, detached; those that Transformer Engine holds in FP8 in the dtype beside it."""
    data = parameter.detach()
    plain: Tensor = dequantize_fp8_tensor(data) if is_float8tensor(data) else data
    return plain

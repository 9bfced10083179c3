"""Whether this machine computes in the precision that a recipe asks for."""

import os

import torch

from megarl.config.precision import FP8Config, PrecisionConfig
from megarl.config.refusal import refusal
from megarl.platform.platform import current, has_transformer_engine

_CAPABILITY = {"tensorwise": (8, 9), "delayed": (8, 9), "blockwise": (9, 0), "mxfp8": (10, 0)}
"""Least compute capability: Ada has FP8, Hopper Transformer Engine's block scaling, Blackwell MX formats."""
_FP32_SCALES = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"


def check_precision(config: PrecisionConfig) -> None:
    """Refuses what this machine does not have.

    Raises:
        RecipeError: FP8 without a GPU that has it or without Transformer Engine, or with other scales in its
            environment; or an fp32 residual stream with Transformer Engine, whose layers take their weights' dtype; or
            batch-invariant arithmetic on a GPU, whose bits nobody has compared.
    """
    if config.batch_invariant and current().name == "cuda":
        raise refusal("precision.batch_invariant", True, "is for CPUs, and this process sees a GPU", "set it to false")
    if config.fp32_residual and current().name == "cuda" and has_transformer_engine() and not config.fp8.emulation:
        reason = "is not taken by Transformer Engine's layers, which this machine has"
        raise refusal("precision.fp32_residual", True, reason, "set it to false")
    if config.fp8.enabled and not config.fp8.emulation:
        _check_fp8(config.fp8)


def _check_fp8(config: FP8Config) -> None:
    if current().name != "cuda":
        _refuse(config, "needs a GPU, and this process sees none")
    if not has_transformer_engine():
        _refuse(config, "needs Transformer Engine, which is not installed", "install megarl's extra 'te'")
    least, found = _CAPABILITY[config.recipe], torch.cuda.get_device_capability(current().device)
    if found < least:
        _refuse(config, f"needs compute capability {least[0]}.{least[1]}, and this GPU has {found[0]}.{found[1]}")
    wants, has = config.block_scales == "fp32", os.environ.get(_FP32_SCALES, "0") == "1"
    if config.recipe == "blockwise" and wants != has:
        reason = f"is Transformer Engine's choice by the environment, which has {_FP32_SCALES}={int(has)}"
        raise refusal("precision.fp8.block_scales", config.block_scales, reason, f"set {_FP32_SCALES}={int(wants)}")


def _refuse(config: FP8Config, reason: str, fix: str | None = None) -> None:
    emulate = "set precision.fp8.emulation=true to round to FP8 without it"
    raise refusal("precision.fp8.recipe", config.recipe, reason, emulate if fix is None else f"{fix}, or {emulate}")

"""Updates in bf16 and in emulated FP8 under a layout, for test_precision_layouts."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.config.precision import FP8Config, PrecisionConfig
from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.megatron.policy import Policy
from megarl.megatron.world import join_world
from megarl.objectives import SFT
from megarl.platform.fp8.linear import delayed_scales
from tests.parallel.layouts_worker import EPSILON, LR, batch
from tests.unit.megatron.tiny import VOCAB, noisy_weights, tiny_recipe

# isort: split
from megatron.core import parallel_state

LAYOUTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "tp2": {"tensor": 2},
    "tp2 + sequence": {"tensor": 2, "sequence": True},
    "pp2": {"pipeline": 2},
    "dp2": {"distributed_optimizer": True},
}
PRECISIONS = {
    "bf16": PrecisionConfig(dtype="bf16"),
    "fp16": PrecisionConfig(dtype="fp16"),
    "mxfp8": PrecisionConfig(fp8=FP8Config(recipe="mxfp8", emulation=True)),
    "delayed": PrecisionConfig(fp8=FP8Config(recipe="delayed", emulation=True)),
}
MOE_LAYOUTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "dp2": {},
    "ep2": {"expert": 2},
    "tp2 + sequence, ep2 of whole experts": {"tensor": 2, "sequence": True, "expert": 2, "expert_tensor": 1},
}
MOE_PRECISIONS = {
    name: PrecisionConfig(fp8=FP8Config(recipe=name, emulation=True)) for name in ("tensorwise", "mxfp8", "delayed")
}
# two key-value heads of 32 columns: each rank's part of every layer is whole blocks of 32
SHAPE = {"hidden_size": 64, "ffn_hidden_size": 128, "head_dim": 32}
# more experts than most sequences have tokens: some get none
MOE = {"family": "qwen3_moe", "moe": {"num_experts": 8, "ffn_hidden_size": 32, "dense_layers": [0]}}


def run(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, Tensor]]:
    """Layout, precision and model to what they gave, for the layouts of this many ranks."""
    results = {}
    for layouts, precisions, shape, suffix in (
        (LAYOUTS, PRECISIONS, SHAPE, ""),
        (MOE_LAYOUTS, MOE_PRECISIONS, {**SHAPE, **MOE}, ", MoE"),
    ):
        for name in (name for name in layouts if (name == "alone") == (world_size == 1)):
            for precision, config in precisions.items():
                tiny = tiny_recipe(world_size=world_size, precision=config, **layouts[name], **shape)
                results[f"{name}, {precision}{suffix}"] = _run(tiny)
    return results


def _run(tiny: Recipe) -> dict[str, Tensor]:
    """Log-probs, loss and gradients, as the layouts' tests measure them, and this rank's delayed scales."""
    layout = join_world(tiny.parallel, 1, tiny.precision.fp8.alignment)
    policy = Policy(tiny, layout, VOCAB)
    policy.load(noisy_weights(tiny.model))
    policy.start_phase(OptimizerConfig(lr=LR, eps=EPSILON, clip_grad=0.0, min_lr_ratio=1.0), 10)
    before = {key: tensor.float().clone() for key, tensor in policy.export()}
    whole = batch()
    log_probs_BT = policy.log_probs(whole, 2)
    update = policy.update(whole, SFT(), micro_batch_size=2)
    gradients = {f"gradient of {key}": (before[key] - tensor) * (EPSILON / LR) for key, tensor in policy.export()}
    scales = {f"scale {path}": scale.scale.clone() for path, scale in delayed_scales(policy.models)}
    parallel_state.destroy_model_parallel()
    return {"log_probs": log_probs_BT[whole.mask_BT], "loss": torch.tensor(update.loss), **gradients, **scales}

"""Updates in bf16 and in emulated FP8 under a layout, for test_precision_layouts."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.config.precision import FP8Config, PrecisionConfig
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
# two key-value heads of 32 columns: each rank's part of every layer is whole blocks of 32
SHAPE = {"hidden_size": 64, "ffn_hidden_size": 128, "head_dim": 32}


def run(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, Tensor]]:
    """Layout to what it gave, for the layouts of this many ranks."""
    names = [name for name in LAYOUTS if (name == "alone") == (world_size == 1)]
    return {f"{name}, {precision}": _run(name, precision, world_size) for name in names for precision in PRECISIONS}


def _run(name: str, precision: str, ranks: int) -> dict[str, Tensor]:
    """Log-probs, loss and gradients, as the layouts' tests measure them, and this rank's delayed scales."""
    tiny = tiny_recipe(world_size=ranks, precision=PRECISIONS[precision], **LAYOUTS[name], **SHAPE)
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

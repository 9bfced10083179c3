"""Megatron-core's data-parallel wrapper, optimizer and schedule, from the recipe."""

import math
from collections.abc import Sequence

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import MegatronOptimizer, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from megarl.config.precision import PrecisionConfig
from megarl.config.training import OptimizerConfig
from megarl.megatron.precision import gradient_buffer_options, optimizer_options


def wrap_for_training(
    models: Sequence[GPTModel], precision: PrecisionConfig, *, distributed_optimizer: bool = False
) -> list[DistributedDataParallel]:
    """Puts each stage's gradients into Megatron-core's buffers, summed over data-parallel ranks in fp32.

    Args:
        models: this rank's stages.
        precision: the trainer's.
        distributed_optimizer: whether each rank gets the sum of its share only.
    """
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=distributed_optimizer,
        **gradient_buffer_options(precision),
    )
    for model in models:
        model.config.finalize_model_grads_func = finalize_model_grads
    return [
        # as in Megatron-LM: only the first stage to be run gains from buckets
        DistributedDataParallel(config=model.config, ddp_config=config, module=model, disable_bucketing=index > 0)
        for index, model in enumerate(models)
    ]


def build_optimizer(
    wrapped: Sequence[DistributedDataParallel], config: OptimizerConfig, steps: int, precision: PrecisionConfig
) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    """AdamW with warm-up and a linear decay to `min_lr_ratio` of the peak at the last of `steps`."""
    megatron_config = MegatronOptimizerConfig(
        optimizer="adam",
        **optimizer_options(precision),
        use_distributed_optimizer=wrapped[0].ddp_config.use_distributed_optimizer,
        lr=config.lr,
        min_lr=config.lr * config.min_lr_ratio,
        weight_decay=config.weight_decay,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        adam_eps=config.eps,
        # 0 would skip the norm too; an infinite bound measures it and never clips
        clip_grad=config.clip_grad or math.inf,
    )
    optimizer = get_megatron_optimizer(
        megatron_config, list(wrapped), config_overrides=get_standard_config_overrides(megatron_config)
    )
    for chunk in wrapped:
        chunk.module.config.grad_scale_func = optimizer.scale_loss
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=config.lr,
        min_lr=config.lr * config.min_lr_ratio,
        lr_warmup_steps=config.warmup_steps if steps > 0 else 0,
        lr_decay_steps=max(steps, 1),
        lr_decay_style="linear",
        start_wd=config.weight_decay,
        end_wd=config.weight_decay,
        wd_incr_steps=max(steps, 1),
        wd_incr_style="constant",
    )
    return optimizer, scheduler

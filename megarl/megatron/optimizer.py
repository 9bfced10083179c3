"""Megatron-core's data-parallel wrapper, optimizer and schedule, from the recipe."""

import math

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import MegatronOptimizer, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from megarl.config.training import OptimizerConfig


def wrap_for_training(model: GPTModel) -> DistributedDataParallel:
    """Puts the model's gradients into Megatron-core's buffers, summed over data-parallel ranks in fp32."""
    wrapped = DistributedDataParallel(
        config=model.config,
        ddp_config=DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=False,
            use_distributed_optimizer=False,
            check_for_nan_in_grad=True,
        ),
        module=model,
    )
    model.config.finalize_model_grads_func = finalize_model_grads
    return wrapped


def build_optimizer(
    wrapped: DistributedDataParallel, config: OptimizerConfig, steps: int
) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    """AdamW with warm-up and a linear decay to `min_lr_ratio` of the peak at the last of `steps`."""
    megatron_config = MegatronOptimizerConfig(
        optimizer="adam",
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
        megatron_config, [wrapped], config_overrides=get_standard_config_overrides(megatron_config)
    )
    wrapped.module.config.grad_scale_func = optimizer.scale_loss
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

"""A model in Megatron-core's own schedule: forward only, or with an optimizer step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import TrainBatch
from megarl.megatron.collect import all_rows, reduce_metrics
from megarl.megatron.optimizer import build_optimizer, wrap_for_training
from megarl.megatron.world import Layout


@dataclass(frozen=True)
class Update:
    """One optimizer step.

    Attributes:
        tokens: tokens that were trained on; where there are none, the weights and the optimizer are as they were.
        loss: normalised loss over the whole update batch.
        grad_norm: global gradient norm before clipping.
        lr: learning rate of the step.
        metrics: the objective's metrics, as means over their counts; without those that counted nothing.
    """

    tokens: int
    loss: float
    grad_norm: float
    lr: float
    metrics: dict[str, float]


def run_schedule(
    chunk: torch.nn.Module, forward_step: Callable[..., Any], own: TrainBatch, size: int, *, forward_only: bool
) -> list[Any]:
    """Runs this rank's sequences through its pipeline stage. Collective over the pipeline.

    Args:
        chunk: the stage.
        forward_step: Megatron's.
        own: this rank's share of the batch.
        size: sequences a micro-batch.
        forward_only: no gradients, and what the loss function returns is collected as it is.

    Returns:
        On the last stage what the loss function gave for each micro-batch, in order; elsewhere nothing.

    Raises:
        ValueError: the sequences do not fill the micro-batches.
    """
    if len(own) == 0 or len(own) % size:
        raise ValueError(f"{len(own)} sequences a rank do not split into micro-batches of {size}")
    chunk.train(not forward_only)
    outputs: list[Any] = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=own.micro_batches(size),
        model=[chunk],
        num_microbatches=len(own) // size,
        seq_length=own.tokens_BT.shape[1],
        micro_batch_size=size,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )
    return outputs


@torch.no_grad()
def score(
    chunk: torch.nn.Module, layout: Layout, forward_step: Callable[..., Any], batch: TrainBatch, size: int
) -> Tensor:
    """One number a target, of the whole batch, on every rank: fp32 [B, T]. Collective."""
    collected = run_schedule(chunk, forward_step, batch[layout.rows(len(batch))], size, forward_only=True)
    rows = torch.cat(collected) if layout.is_last_stage else None
    return all_rows(rows, batch.tokens_BT, layout)


class Trainee:
    """A model with Megatron-core's gradient buffers, optimizer and schedule.

    Attributes:
        model: this rank's stage.
        wrapped: the same in its gradient buffers.
        layout: where this rank stands.
        has_stepped: whether the phase's optimizer holds moments.
    """

    def __init__(self, model: GPTModel, layout: Layout) -> None:
        self.model, self.layout = model, layout
        self.wrapped = wrap_for_training(model)
        self.has_stepped = False

    def start_phase(self, config: OptimizerConfig, steps: int) -> None:
        """Gives the model a fresh optimizer and schedule for `steps` updates."""
        self.optimizer, self.scheduler = build_optimizer(self.wrapped, config, steps)
        self.has_stepped = False

    def train(self, batch: TrainBatch, forward_step: Callable[..., Any], micro_batch_size: int) -> Update:
        """One optimizer step on the batch. Collective.

        Args:
            batch: the whole update batch, the same on every rank; each trains on its share.
            forward_step: Megatron's; its loss function returns sums.
            micro_batch_size: sequences a rank runs at once.

        Raises:
            ValueError: the batch does not split evenly over ranks and micro-batches.
            RuntimeError: (from Megatron-core) a gradient is not finite; the weights are as they were.
            FloatingPointError: Megatron-core's optimizer refused the step.
        """
        batch = batch.with_totals()
        # before the optimizer's step, so that the first one is not spent at a rate of 0
        self.scheduler.step(increment=1)
        lr = self.optimizer.param_groups[0]["lr"]
        if batch.total_tokens == 0:
            # Adam would move the weights by its momentum alone
            return Update(0, 0.0, 0.0, lr, {})
        self.wrapped.zero_grad_buffer()
        self.optimizer.zero_grad()
        own = batch[self.layout.rows(len(batch))]
        logs = run_schedule(self.wrapped, forward_step, own, micro_batch_size, forward_only=False)
        succeeded, grad_norm, _ = self.optimizer.step()
        if not succeeded:
            raise FloatingPointError("the optimizer refused the step: a gradient is not finite")
        self.has_stepped = True
        sums = reduce_metrics(logs, self.layout)
        loss, tokens = sums.pop("loss")
        return Update(
            tokens=int(tokens),
            loss=loss / max(tokens, 1.0),
            grad_norm=float(grad_norm),
            lr=lr,
            metrics={name: total / count for name, (total, count) in sums.items() if count > 0},
        )

"""A model in Megatron-core's own schedule: forward only, or with an optimizer step."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import unwrap_model
from torch import Tensor

from megarl.config.precision import PrecisionConfig
from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import TrainBatch
from megarl.megatron.collect import all_rows, reduce_metrics
from megarl.megatron.finite import all_finite, gradient_buffers
from megarl.megatron.micro_batches import MicroBatchSize, aligned_length, plan_micro_batches, training_cost
from megarl.megatron.optimizer import build_optimizer, wrap_for_training
from megarl.megatron.routing_metrics import load_metrics, reset_routers
from megarl.megatron.world import Layout
from megarl.platform.fp8.linear import advance_scales

Stages = Sequence[torch.nn.Module]
"""A rank's part of a model: one stage, or several that the schedule interleaves."""


@dataclass(frozen=True)
class Update:
    """One optimizer step.

    Attributes:
        tokens: tokens that were trained on; where there are none, the weights and the optimizer are as they were.
        loss: normalised loss over the whole update batch.
        grad_norm: global gradient norm before clipping; NaN where the step was skipped.
        lr: learning rate of the step.
        metrics: the objective's metrics, as means over their counts; without those that counted nothing.
        loss_scale: of the step, in fp16; None elsewhere.
        skipped: whether its gradient overflowed in fp16, which counts towards a lower loss scale, or it is `nonfinite`;
            the weights and the optimizer are as they were.
        nonfinite: whether its loss or its gradient is not finite, in fp16 at the least loss scale; it has no metrics.
    """

    tokens: int
    loss: float
    grad_norm: float
    lr: float
    metrics: dict[str, float]
    loss_scale: float | None = None
    skipped: bool = False
    nonfinite: bool = False


def scale_metrics(name: str, updates: Sequence[Update]) -> dict[str, float]:
    """`name`/loss_scale of the last of some updates and `name`/skipped_updates among them; nothing but in fp16."""
    if not updates or updates[-1].loss_scale is None:
        return {}
    skipped = sum(update.skipped and not update.nonfinite for update in updates)
    return {f"{name}/loss_scale": updates[-1].loss_scale, f"{name}/skipped_updates": float(skipped)}


@dataclass(frozen=True)
class Share:
    """A data-parallel rank's part of a batch, in micro-batches.

    Attributes:
        micro_batches: in the order that they are run; all of one shape where they pass between pipeline stages.
        rows: of the batch, in the same order.
        sequences: rows that a micro-batch's activations have.
        tokens: tokens of such a row, over all context-parallel ranks.
    """

    micro_batches: list[TrainBatch]
    rows: list[int]
    sequences: int
    tokens: int


def own_share(stages: Stages, layout: Layout, batch: TrainBatch, size: MicroBatchSize) -> Share:
    """This rank's part of a batch that every rank holds.

    Raises:
        ValueError: see `plan_micro_batches`.
    """
    model = unwrap_model(stages[0])
    cost = training_cost(model.config, model.vocab_size)
    plan = plan_micro_batches(batch.lengths_B.tolist(), size, layout, cost)
    own = plan.rows[layout.data_rank]
    rows = [row for rows in own for row in rows]
    if plan.tokens is None:
        width = aligned_length(batch.tokens_BT.shape[1], layout.token_multiple)
        return Share([batch[rows] for rows in own], rows, len(own[0]), width)
    tokens = plan.tokens[layout.data_rank]
    micro_batches = [replace(batch[rows], packed_tokens=count) for rows, count in zip(own, tokens, strict=True)]
    return Share(micro_batches, rows, 1, tokens[0])


def run_schedule(stages: Stages, forward_step: Callable[..., Any], share: Share, *, forward_only: bool) -> list[Any]:
    """Runs this rank's sequences through its pipeline stages. Collective over the pipeline.

    Args:
        stages: those of this rank.
        forward_step: Megatron's.
        share: what it runs.
        forward_only: no gradients, and what the loss function returns is collected as it is.

    Returns:
        On the last stage what the loss function gave for each micro-batch, in order; elsewhere nothing.
    """
    for stage in stages:
        stage.train(not forward_only)
    # each interleaved stage draws the micro-batches anew
    iterators = [iter(share.micro_batches) for _ in stages]
    outputs: list[Any] = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iterators if len(stages) > 1 else iterators[0],
        model=list(stages),
        num_microbatches=len(share.micro_batches),
        seq_length=share.tokens,
        micro_batch_size=share.sequences,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )
    return outputs


@torch.no_grad()
def score(
    stages: Stages, layout: Layout, forward_step: Callable[..., Any], batch: TrainBatch, size: MicroBatchSize
) -> Tensor:
    """One number a target, of the whole batch, on every rank: fp32 [B, T]. Collective."""
    share = own_share(stages, layout, batch, size)
    collected = run_schedule(stages, forward_step, share, forward_only=True)
    return all_rows(torch.cat(collected) if layout.is_last_stage else None, share.rows, batch.tokens_BT, layout)


class Trainee:
    """A model with Megatron-core's gradient buffers, optimizer and schedule.

    Attributes:
        models: this rank's stages.
        wrapped: the same in their gradient buffers.
        layout: where this rank stands.
        has_stepped: whether the phase's optimizer holds moments.
    """

    def __init__(
        self, models: list[GPTModel], layout: Layout, precision: PrecisionConfig, *, distributed_optimizer: bool = False
    ) -> None:
        self.models, self.layout, self.precision = models, layout, precision
        self.wrapped = wrap_for_training(models, precision, distributed_optimizer=distributed_optimizer)
        self.optimizer: Any = None
        self.has_stepped = False
        self._wait_for_reader: Callable[[], object] | None = None

    def hold_until(self, wait: Callable[[], object]) -> None:
        """Has the next change of weights or moments wait for whoever reads them beside the training.

        Args:
            wait: returns once they are read. Called at most once, before that change.
        """
        self.release()
        self._wait_for_reader = wait

    def release(self) -> None:
        """Waits for whoever reads the weights and moments: to be called before they change."""
        wait, self._wait_for_reader = self._wait_for_reader, None
        if wait is not None:
            wait()

    def start_phase(self, config: OptimizerConfig, steps: int) -> None:
        """Gives the model a fresh optimizer and schedule for `steps` updates."""
        self.optimizer, self.scheduler = build_optimizer(self.wrapped, config, steps, self.precision)
        self.has_stepped = False

    def weights(self) -> Iterator[torch.nn.Parameter]:
        """This rank's parameters."""
        for model in self.models:
            yield from model.parameters()

    def take_over_weights(self) -> None:
        """Tells the optimizer, which keeps fp32 weights of its own beside 16-bit ones, that the model's are new."""
        if self.optimizer is not None:
            self.optimizer.reload_model_params()

    def train(
        self,
        batch: TrainBatch,
        forward_step: Callable[..., Any],
        micro_batch_size: MicroBatchSize,
        prepare: Callable[[Share], Share] = lambda share: share,
    ) -> Update:
        """One optimizer step on the batch. Collective.

        Args:
            batch: the whole update batch, the same on every rank; each trains on its share.
            forward_step: Megatron's; its loss function returns sums.
            micro_batch_size: sequences a rank runs at once, or their tokens.
            prepare: adds to each micro-batch what belongs to no whole batch.

        Raises:
            ValueError: the batch does not split into such micro-batches.
        """
        batch = batch.with_totals()
        # before the optimizer's step, so that the first one is not spent at a rate of 0
        self.scheduler.step(increment=1)
        lr = self.optimizer.param_groups[0]["lr"]
        if batch.total_tokens == 0:
            # Adam would move the weights by its momentum alone
            return Update(0, 0.0, 0.0, lr, {})
        for stage in self.wrapped:
            stage.zero_grad_buffer()
        reset_routers(self.wrapped)
        self.optimizer.zero_grad()
        share = prepare(own_share(self.wrapped, self.layout, batch, micro_batch_size))
        logs = run_schedule(self.wrapped, forward_step, share, forward_only=False)
        loss_scale = self.optimizer.get_loss_scale().item() if self.precision.dtype == "fp16" else None
        sums = reduce_metrics(logs, self.layout)
        loss, tokens = sums.pop("loss")
        nonfinite = not (math.isfinite(loss) and (loss_scale is not None or self._gradient_is_finite()))
        self.release()
        succeeded, grad_norm, _ = (False, math.nan, None) if nonfinite else self.optimizer.step()
        # an overflow is what fp16's loss scaling goes by, until it can go no lower
        nonfinite = nonfinite or (not succeeded and (loss_scale or 0.0) <= self.precision.loss_scale.least)
        if not nonfinite:
            advance_scales(self.models)
        self.has_stepped = self.has_stepped or succeeded
        loads = load_metrics(self.wrapped, self.layout, batch.total_sequences or 0)
        means = {name: total / count for name, (total, count) in sums.items() if count > 0} | loads
        return Update(
            tokens=int(tokens),
            loss=loss / max(tokens, 1.0),
            grad_norm=float(grad_norm) if succeeded else math.nan,
            lr=lr,
            metrics={} if nonfinite else means,
            loss_scale=loss_scale,
            skipped=not succeeded,
            nonfinite=nonfinite,
        )

    def _gradient_is_finite(self) -> bool:
        return all_finite(gradient_buffers(self.wrapped), self.layout.world_size)

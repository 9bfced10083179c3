"""The policy that is trained, and the frozen reference: a model, its schedule runs, its optimizer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import TrainBatch
from megarl.megatron.collect import all_rows, reduce_metrics
from megarl.megatron.forward import DEFAULT, policy_forward_step, scoring_forward_step
from megarl.megatron.model import build_model
from megarl.megatron.optimizer import build_optimizer, wrap_for_training
from megarl.megatron.weights import ReadTensor, export_weights, load_weights
from megarl.megatron.world import Layout
from megarl.objectives.batch import Objective
from megarl.objectives.normalisation import Normalisation


@dataclass(frozen=True)
class Update:
    """One optimizer step.

    Attributes:
        loss: normalised loss over the whole update batch.
        grad_norm: global gradient norm before clipping.
        lr: learning rate of the step.
        tokens: tokens that were trained on; where there are none, the weights and the optimizer are as they were.
        metrics: the objective's metrics, as means over their counts.
    """

    tokens: int
    loss: float
    grad_norm: float
    lr: float
    metrics: dict[str, float]


class FrozenModel:
    """A model that only scores: this rank's pipeline stage, in evaluation mode."""

    def __init__(self, recipe: Recipe, layout: Layout, vocab_size: int) -> None:
        self.recipe, self.layout, self.vocab_size = recipe, layout, vocab_size
        self.model: GPTModel = build_model(recipe.model, recipe.parallel, vocab_size)

    def load(self, read: ReadTensor) -> None:
        """Fills the weights from full Hugging Face tensors."""
        load_weights(self.model, self.recipe.model, self.vocab_size, read)

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor under its Hugging Face name, on every rank. Collective."""
        return export_weights(self.model, self.recipe.model, self.vocab_size)

    @torch.no_grad()
    def log_probs(self, batch: TrainBatch, micro_batch_size: int) -> Tensor:
        """Log-probs of the batch's targets, at the rollout's temperature. Collective.

        Args:
            batch: the whole batch, the same on every rank; each scores its share.
            micro_batch_size: sequences a rank runs at once.

        Returns:
            fp32 [B, T] on every rank, in nats, NaN outside the mask.

        Raises:
            ValueError: the batch does not split evenly over ranks and micro-batches.
        """
        own = batch[self.layout.rows(len(batch))]
        collected = self._run(
            scoring_forward_step(vocab_size=self.vocab_size, temperature=self.recipe.rollout.temperature),
            own,
            micro_batch_size,
            forward_only=True,
        )
        rows = torch.cat(collected) if self.layout.is_last_stage else None
        return all_rows(rows, batch.tokens_BT, self.layout)

    @property
    def chunk(self) -> torch.nn.Module:
        """What the schedule runs."""
        model: torch.nn.Module = self.model
        return model

    def _run(self, forward_step: object, own: TrainBatch, micro_batch_size: int, *, forward_only: bool) -> list[Any]:
        if len(own) == 0 or len(own) % micro_batch_size:
            raise ValueError(f"{len(own)} sequences a rank do not split into micro-batches of {micro_batch_size}")
        self.chunk.train(not forward_only)
        outputs: list[Any] = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=own.micro_batches(micro_batch_size),
            model=[self.chunk],
            num_microbatches=len(own) // micro_batch_size,
            seq_length=own.tokens_BT.shape[1],
            micro_batch_size=micro_batch_size,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        return outputs


class Policy(FrozenModel):
    """The model that is trained, with Megatron-core's gradient buffers, optimizer and schedule."""

    def __init__(self, recipe: Recipe, layout: Layout, vocab_size: int) -> None:
        super().__init__(recipe, layout, vocab_size)
        self.wrapped = wrap_for_training(self.model)

    def start_phase(self, config: OptimizerConfig, steps: int) -> None:
        """Gives the policy a fresh optimizer and schedule for `steps` updates."""
        self.optimizer, self.scheduler = build_optimizer(self.wrapped, config, steps)

    def update(
        self,
        batch: TrainBatch,
        objective: Objective,
        *,
        micro_batch_size: int,
        temperature: float = 1.0,
        normalisation: Normalisation = DEFAULT,
    ) -> Update:
        """One optimizer step on the batch. Collective.

        Args:
            batch: the whole update batch, the same on every rank; each trains on its share.
            objective: the loss.
            micro_batch_size: sequences a rank runs at once.
            temperature: of the sampling; divides the logits.
            normalisation: see `megarl.objectives.normalisation`.

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
        forward_step = policy_forward_step(
            objective,
            vocab_size=self.vocab_size,
            temperature=temperature,
            normalisation=normalisation,
        )
        self.wrapped.zero_grad_buffer()
        self.optimizer.zero_grad()
        logs = self._run(forward_step, batch[self.layout.rows(len(batch))], micro_batch_size, forward_only=False)
        succeeded, grad_norm, _ = self.optimizer.step()
        if not succeeded:
            raise FloatingPointError("the optimizer refused the step: a gradient is not finite")
        sums = reduce_metrics(logs, self.layout)
        loss, tokens = sums.pop("loss")
        return Update(
            tokens=int(tokens),
            loss=loss / max(tokens, 1.0),
            grad_norm=float(grad_norm),
            lr=lr,
            metrics={name: total / max(count, 1.0) for name, (total, count) in sums.items()},
        )

    @property
    def chunk(self) -> torch.nn.Module:
        """The model in its gradient buffers."""
        wrapped: torch.nn.Module = self.wrapped
        return wrapped

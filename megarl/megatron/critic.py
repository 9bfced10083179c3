"""The critic: a model of the policy's shape whose output layer gives one number, the value of the state."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.megatron.batch import TrainBatch
from megarl.megatron.forward import input_for, run_model, stacked
from megarl.megatron.micro_batches import MicroBatchSize
from megarl.megatron.model import build_model
from megarl.megatron.model_input import ModelInput
from megarl.megatron.schedule import Trainee, Update, score
from megarl.megatron.weights import ReadTensor, load_weights
from megarl.megatron.world import Layout
from megarl.objectives.masked import masked, masked_sum
from megarl.objectives.value_loss import clipped_value_loss

HEAD = "output_layer."


class ValueHead(torch.nn.Module):
    """Hidden states to one number, in fp32; every tensor-parallel rank holds it whole. Starts at zero."""

    def __init__(self, hidden_size: int, sequence_parallel: bool) -> None:
        super().__init__()
        self.sequence_parallel = sequence_parallel
        self.weight = torch.nn.Parameter(torch.zeros(1, hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor, weight: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """Values [s, b, 1], as Megatron-core calls its output layer."""
        if self.sequence_parallel:
            # each tensor rank forms the whole loss, so its gradient is cut up, not added up
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return F.linear(hidden.float(), self.weight, self.bias), None


def build_critic_model(recipe: Recipe, vocab_size: int) -> list[GPTModel]:
    """This rank's stages of the critic, with weights still to be loaded."""
    # values are compared with no engine's
    precision = replace(recipe.precision, batch_invariant=False)
    models = build_model(recipe.model, recipe.parallel, vocab_size, precision=precision, tie_embeddings=False)
    if models[-1].post_process:
        head = ValueHead(recipe.model.hidden_size, recipe.parallel.sequence)
        models[-1].output_layer = head.to(next(models[-1].parameters()).device)
    return models


class Critic(Trainee):
    """The value function, with an optimizer of its own."""

    def __init__(self, recipe: Recipe, layout: Layout, vocab_size: int) -> None:
        super().__init__(
            build_critic_model(recipe, vocab_size),
            layout,
            recipe.precision,
            distributed_optimizer=recipe.parallel.distributed_optimizer,
        )
        self.recipe, self.vocab_size = recipe, vocab_size

    def load(self, read: ReadTensor) -> None:
        """Fills the body from full Hugging Face tensors, such as the policy's; the head stays at zero."""
        self.release()
        load_weights(self.models, self.recipe.model, self.vocab_size, read, without=HEAD)
        self.take_over_weights()

    def values(self, batch: TrainBatch, micro_batch_size: MicroBatchSize) -> Tensor:
        """Value of the state before each token, fp32 [B, T], on every rank. Collective."""
        return score(self.wrapped, self.layout, _values_forward_step, batch, micro_batch_size)

    def update(self, batch: TrainBatch, *, micro_batch_size: MicroBatchSize, clip: float) -> Update:
        """One optimizer step towards the batch's returns; see `Trainee.train`. Collective."""
        return self.train(batch, _training_forward_step(clip), micro_batch_size)


def _values_forward_step(
    data_iterator: Iterator[TrainBatch], model: torch.nn.Module
) -> tuple[Tensor, Callable[..., Tensor]]:
    inputs = input_for(model, next(data_iterator))
    return run_model(model, inputs), lambda values_bs1, non_loss_data=True: _on_rows(values_bs1, inputs)


def _on_rows(values_bs1: Tensor, inputs: ModelInput) -> Tensor:
    """The head's output as fp32 [B, T]."""
    return inputs.bring_back(values_bs1.float().flatten())[0]


def _training_forward_step(clip: float) -> Callable[..., Any]:
    def forward_step(data_iterator: Iterator[TrainBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(data_iterator)
        inputs = input_for(model, batch)

        def loss_func(values_bs1: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
            assert batch.old_values_BT is not None and batch.returns_BT is not None
            mask_BT, values_BT = batch.mask_BT, _on_rows(values_bs1, inputs)
            loss_BT, clipped_BT = clipped_value_loss(values_BT, batch.old_values_BT, batch.returns_BT, mask_BT, clip)
            loss, tokens = loss_BT.sum(), mask_BT.sum()
            sums = {
                "loss": (loss.detach(), tokens),
                "critic/value_mean": masked_sum(values_BT, mask_BT),
                "critic/return_mean": masked_sum(batch.returns_BT, mask_BT),
                "critic/return_square": masked_sum(batch.returns_BT.square(), mask_BT),
                "critic/error_square": masked_sum((masked(values_BT - batch.returns_BT, mask_BT)).square(), mask_BT),
                "critic/clip_share": masked_sum(clipped_BT.float(), mask_BT),
            }
            return loss, inputs.take(mask_BT).sum().int(), stacked(sums)

        return run_model(model, inputs), loss_func

    return forward_step

"""Objectives inside Megatron's own schedule: the plugin's public surface.

`policy_forward_step(objective, ...)` gives the `forward_step(data_iterator, model) -> (output, loss_func)` that
Megatron-LM's training loops and `get_forward_backward_func()` take.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.utils import get_model_config
from torch import Tensor

from megarl.megatron.batch import TrainBatch
from megarl.megatron.log_probs import VocabularyShard, token_log_probs
from megarl.objectives.batch import Objective, Sum, TokenBatch
from megarl.objectives.normalisation import Normalisation, weighted_sum

DEFAULT = Normalisation()

LossFunc = Callable[[Tensor], tuple[Tensor, Tensor, Mapping[str, Tensor]]]
ForwardStep = Callable[[Iterator[TrainBatch], torch.nn.Module], tuple[Tensor, LossFunc]]


def policy_forward_step(
    objective: Objective,
    *,
    vocab_size: int,
    temperature: float = 1.0,
    normalisation: Normalisation = DEFAULT,
) -> ForwardStep:
    """Makes a Megatron-LM forward step from an objective.

    Args:
        objective: see `megarl.objectives`.
        vocab_size: real tokens; what Megatron-core pads the vocabulary with gets no probability.
        temperature: of the sampling; divides the logits.
        normalisation: see `megarl.objectives.normalisation`.

    Returns:
        The forward step. Its data iterator yields `TrainBatch`es with totals; its loss function returns Megatron's
        triple: summed loss, number of tokens, and metrics, each a tensor of its sum and its count, which
        Megatron-LM's training loop adds over micro-batches and ranks and divides.

    Raises:
        ValueError: (from the step) the model's configuration has calculate_per_token_loss off, under which
            Megatron-core would average micro-batch means instead of dividing by the global token count; or the
            batch has no totals.
    """

    def forward_step(data_iterator: Iterator[TrainBatch], model: torch.nn.Module) -> tuple[Tensor, LossFunc]:
        if not get_model_config(model).calculate_per_token_loss:
            raise ValueError(
                "TransformerConfig.calculate_per_token_loss=False would average micro-batch means; set it to True"
            )
        batch = next(data_iterator)

        if batch.total_tokens is None or batch.total_responses is None:
            raise ValueError("the batch has no totals; call with_totals() on the whole update batch first")
        total_tokens, total_responses = batch.total_tokens, batch.total_responses

        def loss_func(logits_BTV: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
            log_probs_BT, entropy_BT = _score(logits_BTV, batch, vocab_size, temperature)
            output = objective(_token_batch(batch, log_probs_BT, entropy_BT))
            weights_BT = normalisation.weights(batch.mask_BT, total_tokens, total_responses)
            loss = weighted_sum(output.loss_BT, weights_BT)
            tokens = batch.mask_BT.sum()
            return loss, tokens.int(), stacked({"loss": (loss.detach(), tokens), **output.metrics})

        return run_model(model, batch), loss_func

    return forward_step


def scoring_forward_step(*, vocab_size: int, temperature: float) -> Callable[..., Any]:
    """A forward step that trains nothing: with `collect_non_loss_data` it yields log-probs [B, T] a micro-batch.

    Log-probs are fp32, in nats, NaN outside the mask.
    """

    def forward_step(data_iterator: Iterator[TrainBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(data_iterator)

        def collect(logits_BTV: Tensor, non_loss_data: bool = True) -> Tensor:
            return _score(logits_BTV, batch, vocab_size, temperature)[0]

        return run_model(model, batch), collect

    return forward_step


def stacked(sums: Mapping[str, Sum]) -> dict[str, Tensor]:
    """Each sum and its count as one tensor of two, as Megatron-LM's training loop adds them up.

    Stacking copies, which it must: the schedule works on the loss in place.
    """
    return {name: torch.stack([total.float(), count.float()]) for name, (total, count) in sums.items()}


def run_model(model: torch.nn.Module, batch: TrainBatch) -> Tensor:
    """The stage's output for a batch: what its output layer gives on the last one, hidden states elsewhere."""
    positions_BT = torch.arange(batch.tokens_BT.shape[1], device=batch.tokens_BT.device).expand_as(batch.tokens_BT)
    output: Tensor = model(batch.tokens_BT, positions_BT, None)
    return output


def _score(logits_BTV: Tensor, batch: TrainBatch, vocab_size: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B, T]; only the masked positions are worked out, the others are NaN."""
    group = parallel_state.get_tensor_model_parallel_group()
    shard = VocabularyShard.of(logits_BTV.shape[-1], vocab_size, group)
    log_probs_N, entropy_N = token_log_probs(
        logits_BTV[batch.mask_BT], batch.targets_BT[batch.mask_BT], temperature, shard
    )
    blank_BT = torch.full(batch.mask_BT.shape, float("nan"), device=logits_BTV.device)
    return (
        blank_BT.masked_scatter(batch.mask_BT, log_probs_N),
        blank_BT.masked_scatter(batch.mask_BT, entropy_N),
    )


def _token_batch(batch: TrainBatch, log_probs_BT: Tensor, entropy_BT: Tensor) -> TokenBatch:
    return TokenBatch(
        log_probs_BT=log_probs_BT,
        mask_BT=batch.mask_BT,
        entropy_BT=entropy_BT,
        advantages_BT=batch.advantages_BT,
        old_log_probs_BT=batch.old_log_probs_BT,
        rollout_log_probs_BT=batch.rollout_log_probs_BT,
        reference_log_probs_BT=batch.reference_log_probs_BT,
        correction_weights_BT=batch.correction_weights_BT,
        correction_keep_BT=batch.correction_keep_BT,
        selected_BT=batch.selected_BT,
    )

"""Objectives inside Megatron's own schedule: the plugin's public surface.

`policy_forward_step(objective, ...)` gives the `forward_step(data_iterator, model) -> (output, loss_func)` that
Megatron-LM's training loops and `get_forward_backward_func()` take.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from megatron.core.utils import get_model_config
from torch import Tensor

from megarl.megatron.batch import TrainBatch
from megarl.megatron.distribution import PLAIN, Sampling
from megarl.megatron.head import deferred_weight
from megarl.megatron.local_loss import FIELDS, local_loss
from megarl.megatron.model_input import ModelInput, model_input
from megarl.megatron.precision import token_alignment
from megarl.megatron.router import routers
from megarl.megatron.routing_input import routing_input
from megarl.megatron.scores import OutsideSupport, Scorer, Scores
from megarl.objectives.batch import Objective, Sum, TokenBatch, is_token_local
from megarl.objectives.normalisation import Normalisation, weighted_sum

DEFAULT = Normalisation()

LossFunc = Callable[[Tensor], tuple[Tensor, Tensor, Mapping[str, Tensor]]]
ForwardStep = Callable[[Iterator[TrainBatch], torch.nn.Module], tuple[Tensor, LossFunc]]


def policy_forward_step(
    objective: Objective,
    *,
    vocab_size: int,
    sampling: Sampling = PLAIN,
    normalisation: Normalisation = DEFAULT,
    reference: torch.nn.Module | None = None,
) -> ForwardStep:
    """Makes a Megatron-LM forward step from an objective.

    Args:
        objective: see `megarl.objectives`.
        vocab_size: real tokens; what Megatron-core pads the vocabulary with gets no probability.
        sampling: how the responses were drawn; log-probs and entropies are those of its distribution.
        normalisation: see `megarl.objectives.normalisation`.
        reference: this rank's stage of the reference, for an objective that reads the exact KL; the batches then bring
            its hidden states along.

    Returns:
        The forward step. Its data iterator yields `TrainBatch`es with totals; its loss function returns Megatron's
        triple: summed loss, number of tokens, and metrics, each a tensor of its sum and its count, which
        Megatron-LM's training loop adds over micro-batches and ranks and divides.

    Raises:
        ValueError: (from the step) the model's configuration has calculate_per_token_loss off, under which
            Megatron-core would average micro-batch means instead of dividing by the global token count; or the
            batch has no totals; or there is a reference and the sampling truncates (see `exact_kl`).
    """
    scorer = Scorer(vocab_size, sampling, reference)

    def forward_step(data_iterator: Iterator[TrainBatch], model: torch.nn.Module) -> tuple[Tensor, LossFunc]:
        if not get_model_config(model).calculate_per_token_loss:
            raise ValueError(
                "TransformerConfig.calculate_per_token_loss=False would average micro-batch means; set it to True"
            )
        batch = next(data_iterator)

        if batch.total_tokens is None or batch.total_responses is None:
            raise ValueError("the batch has no totals; call with_totals() on the whole update batch first")
        total_tokens, total_responses = batch.total_tokens, batch.total_responses

        inputs = input_for(model, batch)

        def loss_func(output_bsX: Tensor) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
            weights_BT = normalisation.weights(batch.mask_BT, total_tokens, total_responses)
            weight_VH = deferred_weight(model)
            # fp16 hidden states would get a gradient before the loss scale is in it, and lose it to underflow
            forms_gradient = weight_VH is not None and weight_VH.dtype != torch.float16
            if weight_VH is not None and forms_gradient and is_token_local(objective):
                distribution = scorer.distribution(model, len(weight_VH))
                loss, sums = local_loss(
                    objective, model, output_bsX, weight_VH, batch, inputs, weights_BT, distribution
                )
            else:
                output = objective(_token_batch(batch, scorer(model, output_bsX, batch, inputs)))
                loss = weighted_sum(output.loss_BT, weights_BT)
                sums = {"loss": (loss.detach(), batch.mask_BT.sum()), **output.metrics}
            # Megatron-core adds the tokens up over context-parallel ranks too
            return loss, inputs.take(batch.mask_BT).sum().int(), stacked(sums)

        return run_model(model, inputs), loss_func

    return forward_step


def scoring_forward_step(
    *, vocab_size: int, sampling: Sampling = PLAIN, outside: OutsideSupport | None = None
) -> Callable[..., Any]:
    """A forward step that trains nothing: with `collect_non_loss_data` it yields log-probs [B, T] a micro-batch.

    Log-probs are fp32, in nats, NaN outside the mask.

    Args:
        vocab_size: real tokens.
        sampling: how the responses were drawn; log-probs are those of its distribution.
        outside: counts the targets that the sampling leaves out.
    """
    scorer = Scorer(vocab_size, sampling)

    def forward_step(data_iterator: Iterator[TrainBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(data_iterator)
        inputs = input_for(model, batch)

        def collect(output_bsX: Tensor, non_loss_data: bool = True) -> Tensor:
            scores = scorer(model, output_bsX, batch, inputs)
            if outside is not None and scores.outside_BT is not None:
                outside.take(scores.outside_BT[batch.mask_BT])
            return scores.log_probs_BT

        return run_model(model, inputs), collect

    return forward_step


def stacked(sums: Mapping[str, Sum]) -> dict[str, Tensor]:
    """Each sum and its count as one tensor of two, as Megatron-LM's training loop adds them up.

    Stacking copies, which it must: the schedule works on the loss in place.
    """
    return {name: torch.stack([total.float(), count.float()]) for name, (total, count) in sums.items()}


def input_for(model: torch.nn.Module, batch: TrainBatch) -> ModelInput:
    """A micro-batch as this rank's stage of the model reads it."""
    config = get_model_config(model)
    inputs = model_input(batch, config.sequence_parallel, token_alignment(config))
    if not config.num_moe_experts:
        return inputs
    return replace(inputs, routing=routing_input(batch, inputs, config.sequence_parallel))


def run_model(model: torch.nn.Module, inputs: ModelInput) -> Tensor:
    """The stage's output, [b, s, ...]: what its output layer gives on the last one; hidden states elsewhere."""
    for router in routers([model]) if inputs.routing is not None else ():
        router.input = inputs.routing
    output: Tensor = model(inputs.tokens_bs, inputs.positions_bs, None, packed_seq_params=inputs.packed)
    return output


def _token_batch(batch: TrainBatch, scores: Scores) -> TokenBatch:
    return TokenBatch(
        log_probs_BT=scores.log_probs_BT,
        mask_BT=batch.mask_BT,
        entropy_BT=scores.entropy_BT,
        reference_kl_BT=scores.reference_kl_BT,
        **{name: getattr(batch, name) for name in FIELDS},
    )

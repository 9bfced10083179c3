"""The loss of a micro-batch under a token-local objective, whose gradient is formed with the logits."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from megarl.megatron.batch import TrainBatch
from megarl.megatron.distribution import Distribution
from megarl.megatron.head import head_input
from megarl.megatron.head_loss import head_loss
from megarl.megatron.model_input import ModelInput
from megarl.objectives.batch import Objective, Sum, TokenBatch
from megarl.objectives.normalisation import weighted_sum

FIELDS = (
    "advantages_BT",
    "old_log_probs_BT",
    "rollout_log_probs_BT",
    "reference_log_probs_BT",
    "correction_weights_BT",
    "correction_keep_BT",
    "selected_BT",
)
"""What a `TokenBatch` takes over from the batch as it is."""


def local_loss(
    objective: Objective,
    model: torch.nn.Module,
    hidden_bsH: Tensor,
    weight_VH: Tensor,
    batch: TrainBatch,
    inputs: ModelInput,
    weights_BT: Tensor,
    distribution: Distribution,
) -> tuple[Tensor, dict[str, Sum]]:
    """The weighted sum of the trained tokens' losses, and the objective's metrics with the loss among them.

    The loss and its gradient are of this rank's tokens. The metrics are of all context-parallel ranks' on each of them.

    Args:
        objective: one whose term of a token depends on no other token.
        model: this rank's last stage.
        hidden_bsH: what its output layer reads.
        weight_VH: this rank's rows of the output layer's weight.
        batch: the micro-batch.
        inputs: how the model read it.
        weights_BT: of each token's loss.
        distribution: what this rank's logits stand for.
    """
    trained_M = inputs.trained(batch.mask_BT)
    own = {name: inputs.take(value)[trained_M] for name in FIELDS if (value := getattr(batch, name)) is not None}
    weights_M = inputs.take(weights_BT)[trained_M]
    sums: dict[str, Sum] = {}

    def token_loss(log_probs_n: Tensor, entropy_n: Tensor, rows: slice) -> Tensor:
        tokens = TokenBatch(
            log_probs_BT=log_probs_n[None],
            mask_BT=torch.ones_like(log_probs_n[None], dtype=torch.bool),
            entropy_BT=entropy_n[None],
            **{name: value_M[rows][None] for name, value_M in own.items()},
        )
        output = objective(tokens)
        loss = weighted_sum(output.loss_BT, weights_M[rows][None])
        for name, (total, count) in {"loss": (loss.detach(), tokens.mask_BT.sum()), **output.metrics}.items():
            before = sums.get(name)
            sums[name] = (total, count) if before is None else (before[0] + total, before[1] + count)
        return loss

    hidden_MH = head_input(model, hidden_bsH.flatten(0, 1).index_select(0, trained_M))
    targets_M = inputs.take(batch.targets_BT)[trained_M]
    loss = head_loss(hidden_MH, weight_VH, targets_M, distribution, token_loss)
    if len(targets_M) == 0:
        # for the metrics' names, which every rank must know
        token_loss(weights_M, weights_M, slice(0))
    return loss, _over_context_ranks(sums, len(inputs.places_CN))


def _over_context_ranks(sums: Mapping[str, Sum], ranks: int) -> dict[str, Sum]:
    if ranks == 1:
        return dict(sums)
    total_K2 = torch.stack([torch.stack([total.double(), count.double()]) for total, count in sums.values()])
    dist.all_reduce(total_K2, group=parallel_state.get_context_parallel_group())
    return {name: (pair[0], pair[1]) for name, pair in zip(sums, total_K2, strict=True)}

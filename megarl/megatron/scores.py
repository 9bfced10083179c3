"""What the last stage's output says of each target: log-prob, entropy and, where asked for, the exact KL."""

from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from megatron.core.utils import get_model_config
from torch import Tensor

from megarl.megatron.batch import TrainBatch
from megarl.megatron.collect import sum_over_speakers
from megarl.megatron.distribution import PLAIN, Distribution, Sampling, VocabularyShard
from megarl.megatron.exact_kl import exact_kl
from megarl.megatron.head import deferred_weight, head_input
from megarl.megatron.head_log_probs import head_log_probs
from megarl.megatron.model_input import ModelInput
from megarl.megatron.token_log_probs import token_log_probs
from megarl.megatron.world import Layout
from megarl.platform.layers.invariant import invariant_rotary


@dataclass(frozen=True)
class Scores:
    """Per-token results, fp32 [B, T], NaN outside the mask; the first three are in nats and carry a gradient.

    Attributes:
        log_probs_BT: of the targets.
        entropy_BT: of the distributions.
        reference_kl_BT: KL(policy || reference) over the vocabulary; None without a reference.
        outside_BT: 1 for a target that truncated sampling leaves out, else 0; None where it truncates nothing.
    """

    log_probs_BT: Tensor
    entropy_BT: Tensor
    reference_kl_BT: Tensor | None = None
    outside_BT: Tensor | None = None


class OutsideSupport:
    """Counts the targets that truncated sampling leaves out."""

    def __init__(self) -> None:
        self._counts: list[Tensor] = []

    def take(self, outside_M: Tensor) -> None:
        """Adds some targets, each 1 or 0."""
        self._counts.append(torch.stack([outside_M.sum(), torch.full_like(outside_M.sum(), outside_M.numel())]))

    def share(self, device: torch.device, layout: Layout) -> float:
        """Of the targets of all ranks; 0 where there are none. Collective."""
        count_2 = torch.zeros(2, dtype=torch.float64, device=device)
        for counts in self._counts:
            count_2 += counts
        outside, targets = sum_over_speakers(count_2, layout)
        return float(outside / targets.clamp(min=1))


@dataclass(frozen=True)
class Scorer:
    """Scores a micro-batch; only the masked positions are worked out.

    Attributes:
        vocab_size: real tokens; what Megatron-core pads the vocabulary with gets no probability.
        sampling: how tokens are drawn.
        reference: this rank's stage of the reference, for the exact KL; the batches then bring its hidden states along.
    """

    vocab_size: int
    sampling: Sampling = PLAIN
    reference: torch.nn.Module | None = None

    def __call__(self, model: torch.nn.Module, output_bsX: Tensor, batch: TrainBatch, inputs: ModelInput) -> Scores:
        """Scores from what the model gave: logits, or hidden states where the output layer's product is put off."""
        trained_M = inputs.trained(batch.mask_BT)
        output_NX, targets_N = output_bsX.flatten(0, 1), inputs.take(batch.targets_BT)
        output_MX, targets_M = output_NX.index_select(0, trained_M), targets_N[trained_M]
        weight_VH = deferred_weight(model)
        kl_M = None
        if weight_VH is None:
            scores = token_log_probs(output_MX, targets_M, self.distribution(model, output_MX.shape[-1]))
        else:
            hidden_MH = head_input(model, output_MX)
            distribution = self.distribution(model, len(weight_VH))
            scores = head_log_probs(hidden_MH, weight_VH, targets_M, distribution)
            if self.reference is not None:
                kl_M = self._exact_kl(hidden_MH, weight_VH, batch, distribution)
        outside_M = None if scores.outside_N is None else scores.outside_N.to(scores.log_probs_N.dtype)
        values = {
            "log_probs_BT": scores.log_probs_N,
            "entropy_BT": scores.entropy_N,
            **({} if kl_M is None else {"reference_kl_BT": kl_M}),
            **({} if outside_M is None else {"outside_BT": outside_M}),
        }
        blank_N = torch.full(targets_N.shape, float("nan"), device=output_bsX.device)
        whole = inputs.bring_back(*(blank_N.index_copy(0, trained_M, values_M) for values_M in values.values()))
        return Scores(**dict(zip(values, whole, strict=True)))

    def distribution(self, model: torch.nn.Module, columns: int) -> Distribution:
        """What this rank's logits of the model stand for, given the number of their columns."""
        group = parallel_state.get_tensor_model_parallel_group()
        is_invariant = invariant_rotary(get_model_config(model)) is not None
        return Distribution(VocabularyShard.of(columns, self.vocab_size, group), self.sampling, is_invariant)

    def _exact_kl(self, hidden_MH: Tensor, weight_VH: Tensor, batch: TrainBatch, distribution: Distribution) -> Tensor:
        assert self.reference is not None and batch.reference_hidden_MH is not None
        reference_weight_VH = deferred_weight(self.reference)
        assert reference_weight_VH is not None
        reference_hidden_MH = batch.reference_hidden_MH.to(reference_weight_VH.dtype)
        return exact_kl(hidden_MH, weight_VH, reference_hidden_MH, reference_weight_VH, distribution)

"""What the last stage's output says of each target: log-prob, entropy and, where asked for, the exact KL."""

from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from torch import Tensor

from megarl.megatron.batch import TrainBatch
from megarl.megatron.exact_kl import exact_kl
from megarl.megatron.head import deferred_weight, head_input
from megarl.megatron.head_log_probs import head_log_probs
from megarl.megatron.log_probs import VocabularyShard
from megarl.megatron.model_input import ModelInput
from megarl.megatron.token_log_probs import token_log_probs


@dataclass(frozen=True)
class Scores:
    """Per-token results, fp32 [B, T] in nats, NaN outside the mask; each carries a gradient.

    Attributes:
        log_probs_BT: of the targets.
        entropy_BT: of the distributions.
        reference_kl_BT: KL(policy || reference) over the vocabulary; None without a reference.
    """

    log_probs_BT: Tensor
    entropy_BT: Tensor
    reference_kl_BT: Tensor | None


@dataclass(frozen=True)
class Scorer:
    """Scores a micro-batch; only the masked positions are worked out.

    Attributes:
        vocab_size: real tokens; what Megatron-core pads the vocabulary with gets no probability.
        temperature: divides the logits.
        reference: this rank's stage of the reference, for the exact KL; the batches then bring its hidden states along.
    """

    vocab_size: int
    temperature: float
    reference: torch.nn.Module | None = None

    def __call__(self, model: torch.nn.Module, output_bsX: Tensor, batch: TrainBatch, inputs: ModelInput) -> Scores:
        """Scores from what the model gave: logits, or hidden states where the output layer's product is put off."""
        trained_M = inputs.trained(batch.mask_BT)
        output_NX, targets_N = output_bsX.flatten(0, 1), inputs.take(batch.targets_BT)
        output_MX, targets_M = output_NX.index_select(0, trained_M), targets_N[trained_M]
        weight_VH = deferred_weight(model)
        kl_M = None
        if weight_VH is None:
            scores = token_log_probs(output_MX, targets_M, self.temperature, self._shard(output_MX.shape[-1]))
        else:
            shard = self._shard(len(weight_VH))
            hidden_MH = head_input(model, output_MX)
            scores = head_log_probs(hidden_MH, weight_VH, targets_M, self.temperature, shard)
            if self.reference is not None:
                reference_weight_VH = deferred_weight(self.reference)
                assert batch.reference_hidden_MH is not None and reference_weight_VH is not None
                kl_M = exact_kl(
                    hidden_MH,
                    weight_VH,
                    batch.reference_hidden_MH.to(reference_weight_VH.dtype),
                    reference_weight_VH,
                    self.temperature,
                    shard,
                )
        blank_N = torch.full(targets_N.shape, float("nan"), device=output_bsX.device)
        values = [*scores, *([] if kl_M is None else [kl_M])]
        whole = inputs.bring_back(*(blank_N.index_copy(0, trained_M, values_M) for values_M in values))
        return Scores(whole[0], whole[1], whole[2] if len(whole) > 2 else None)

    def _shard(self, columns: int) -> VocabularyShard:
        return VocabularyShard.of(columns, self.vocab_size, parallel_state.get_tensor_model_parallel_group())

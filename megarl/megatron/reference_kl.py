"""The reference's hidden states beside a share's micro-batches, and the exact KL of a whole batch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from megarl.megatron.batch import TrainBatch
from megarl.megatron.collect import all_rows
from megarl.megatron.forward import input_for, run_model
from megarl.megatron.micro_batches import MicroBatchSize
from megarl.megatron.schedule import Share, Stages, own_share, run_schedule
from megarl.megatron.scores import Scorer
from megarl.megatron.world import Layout


@torch.no_grad()
def beside_reference(reference: Stages, layout: Layout, share: Share) -> Share:
    """The share with the reference's hidden states at the trained tokens. Collective over the pipeline.

    They take [tokens, hidden size] on the last stage, for all of the share's micro-batches.

    Args:
        reference: this rank's stages of it.
        layout: where this rank stands.
        share: what it trains on.
    """
    hidden = run_schedule(reference, _hidden_forward_step, share, forward_only=True)
    if not layout.is_last_stage:
        return share
    pairs = zip(share.micro_batches, hidden, strict=True)
    return replace(share, micro_batches=[replace(batch, reference_hidden_MH=of_batch) for batch, of_batch in pairs])


@torch.no_grad()
def batch_kl(
    policy: Stages, reference: Stages, layout: Layout, scorer: Scorer, batch: TrainBatch, size: MicroBatchSize
) -> Tensor:
    """KL(policy || reference) over the vocabulary at each target, fp32 [B, T] on every rank. Collective.

    Args:
        policy: this rank's stages of it.
        reference: likewise.
        layout: where this rank stands.
        scorer: holds the reference's last stage.
        batch: the whole batch.
        size: see `MicroBatchSize`.
    """
    share = beside_reference(reference, layout, own_share(policy, layout, batch, size))
    collected = run_schedule(policy, _kl_forward_step(scorer), share, forward_only=True)
    return all_rows(torch.cat(collected) if layout.is_last_stage else None, share.rows, batch.tokens_BT, layout)


def _hidden_forward_step(
    data_iterator: Iterator[TrainBatch], model: torch.nn.Module
) -> tuple[Tensor, Callable[..., Tensor]]:
    batch = next(data_iterator)
    inputs = input_for(model, batch)

    def collect(hidden_bsH: Tensor, non_loss_data: bool = True) -> Tensor:
        return hidden_bsH.flatten(0, 1).index_select(0, inputs.trained(batch.mask_BT))

    return run_model(model, inputs), collect


def _kl_forward_step(scorer: Scorer) -> Callable[..., Any]:
    def forward_step(data_iterator: Iterator[TrainBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(data_iterator)
        inputs = input_for(model, batch)

        def collect(output_bsX: Tensor, non_loss_data: bool = True) -> Tensor:
            kl_BT = scorer(model, output_bsX, batch, inputs).reference_kl_BT
            assert kl_BT is not None
            return kl_BT

        return run_model(model, inputs), collect

    return forward_step

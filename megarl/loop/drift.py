"""Drift of a step's rollouts: measured once, the same numbers on every rank."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megarl.data.token_classes import token_classes
from megarl.drift import drift_metrics
from megarl.loop.run import Run
from megarl.megatron.batch import TrainBatch
from megarl.rollout.types import Completion, VersionSpan


def measured_drift(run: Run, batch: TrainBatch, completions: Sequence[Completion]) -> dict[str, float]:
    """`drift_metrics` of the step, before anything is clipped or dropped. Collective.

    The main rank measures: what follows from the numbers must be the same on all, to the last bit.
    """
    found: list[dict[str, float]] = [_measured(run, batch, completions) if run.layout.is_main else {}]
    if run.layout.world_size > 1:
        dist.broadcast_object_list(found)
    return found[0]


def _measured(run: Run, batch: TrainBatch, completions: Sequence[Completion]) -> dict[str, float]:
    assert batch.old_log_probs_BT is not None and batch.rollout_log_probs_BT is not None
    if run.token_classes_V is None:
        run.token_classes_V = token_classes(run.tokenizer).to(batch.mask_BT.device)
    replicas_BT = ages_BT = None
    if max(run.recipe.engine.replicas, len(run.recipe.engine.urls)) > 1:
        replicas_BT = laid_out(batch.mask_BT, completions, lambda span: -1 if span.replica is None else span.replica)
    if run.ahead is not None:
        ages_BT = laid_out(batch.mask_BT, completions, lambda span: run.state.weight_version - span.version)
    return drift_metrics(
        batch.old_log_probs_BT,
        batch.rollout_log_probs_BT,
        batch.mask_BT,
        token_ids_BT=batch.targets_BT,
        classes_V=run.token_classes_V,
        replicas_BT=replicas_BT,
        ages_BT=ages_BT,
    )


def laid_out(mask_BT: Tensor, completions: Sequence[Completion], number: Callable[[VersionSpan], int]) -> Tensor:
    """A number of each span, on the tokens of the batch that it wrote: int64 [B, T], -1 elsewhere.

    Args:
        mask_BT: bool, the generated tokens.
        completions: the responses, whose spans cover them.
        number: of a span.
    """
    spans = [span for completion in completions for span in completion.versions]
    numbers_S = torch.tensor([number(span) for span in spans], dtype=torch.int64)
    lengths_S = torch.tensor([span.end - span.start for span in spans], dtype=torch.int64)
    result_BT = torch.full(mask_BT.shape, -1, device=mask_BT.device)
    result_BT[mask_BT] = numbers_S.repeat_interleave(lengths_S).to(mask_BT.device)
    return result_BT

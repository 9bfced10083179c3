"""An update reads nothing of what the mask hides: tokens behind the end, or what is recorded of them."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megarl.config.training import OptimizerConfig
from megarl.megatron.batch import TrainBatch
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout
from megarl.objectives import GRPO, EntropyBonus, KLPenalty, Normalisation
from megarl.objectives.normalisation import MODES
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, rl_batch, tiny_recipe

ROWS = 4
HIDDEN = 1
"""A response whose mask is False throughout."""


def other_tokens(batch: TrainBatch) -> TrainBatch:
    """Other padding, and another response where all of it is hidden."""
    tokens, targets = batch.tokens_BT.clone(), batch.targets_BT.clone()
    for row in range(ROWS):
        end = 0 if row == HIDDEN else int(batch.mask_BT[row].nonzero().max()) + 1
        tokens[row, end:] = (tokens[row, end:] + 5) % VOCAB
        targets[row, end:] = (targets[row, end:] + 5) % VOCAB
    assert not torch.equal(tokens, batch.tokens_BT)
    return replace(batch, tokens_BT=tokens, targets_BT=targets)


def recorded(junk: float) -> Callable[[TrainBatch], TrainBatch]:
    """Junk for what was recorded of hidden tokens."""

    def spoil(batch: TrainBatch) -> TrainBatch:
        names = ("advantages_BT", "old_log_probs_BT", "reference_log_probs_BT")
        return replace(batch, **{name: getattr(batch, name).masked_fill(~batch.mask_BT, junk) for name in names})

    return spoil


CHANGES = {"tokens": other_tokens, "nan": recorded(math.nan), "inf": recorded(math.inf)}


def updated(layout: Layout, mode: str, change: Callable[[TrainBatch], TrainBatch]) -> tuple[dict[str, Tensor], float]:
    """The weights after one update, and its gradient's norm."""
    recipe = tiny_recipe()
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(OptimizerConfig(lr=1e-2), 2)
    batch = rl_batch(ROWS, policy.log_probs(random_batch(ROWS), 1))
    mask = batch.mask_BT.clone()
    mask[HIDDEN] = False
    batch = change(replace(batch, mask_BT=mask))
    update = policy.update(
        batch,
        EntropyBonus(KLPenalty(GRPO(), 0.04, "k3", importance_weighted=True), 0.01),
        micro_batch_size=2,
        normalisation=Normalisation(mode, 7 if mode == "seq_mean_token_sum_norm" else None),
    )
    return {name: tensor.clone() for name, tensor in policy.export()}, update.grad_norm


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_what_is_hidden_moves_no_weight(layout: Layout, mode: str, change: Callable[[TrainBatch], TrainBatch]) -> None:
    weights, norm = updated(layout, mode, lambda batch: batch)
    other, other_norm = updated(layout, mode, change)
    assert norm == other_norm > 0
    assert all(torch.equal(tensor, other[name]) for name, tensor in weights.items())

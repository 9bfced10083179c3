"""Gradients and updates of batches with next to nothing in them, under a layout, for test_degenerate_batches."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.config.training import OptimizerConfig
from megarl.drift.corrections import (
    OPSM,
    TIS,
    CorrectedObjective,
    Correction,
    IcePop,
    RejectGeometric,
    RejectK3,
    RejectSequences,
    RejectTokens,
    Veto,
)
from megarl.megatron.batch import TrainBatch
from megarl.megatron.critic import Critic
from megarl.megatron.policy import Policy
from megarl.megatron.weights import random_weights
from megarl.megatron.world import Layout, join_world
from megarl.objectives import (
    DPPOTV,
    GRPO,
    GSPO,
    DecoupledPPO,
    EntropyBonus,
    KLPenalty,
    Normalisation,
    Objective,
    Reinforce,
)
from tests.parallel.gradient_worker import ROWS, TEMPERATURE, fixed_batch, gradient_of
from tests.unit.megatron.tiny import VOCAB, tiny_recipe

# isort: split
from megatron.core import parallel_state

MASKED: dict[str, list[int]] = {
    "a rank": [0, 1, 2, 3],
    "the other rank": [4, 5, 6, 7],
    "a micro-batch": [2, 3],
    "all but one token": [0, 1, 2, 3, 4, 6, 7],
    "everything": list(range(ROWS)),
}
"""Rows without a trained token; row 6 has none in any of them."""
WHOLE: dict[str, tuple[Objective, str]] = {
    name: (EntropyBonus(KLPenalty(objective, 0.05), 0.01), mode)
    for name, (objective, mode) in {
        "grpo": (GRPO(), "seq_mean_token_mean"),
        "gspo": (GSPO(0.5, 0.5), "seq_mean_token_sum"),
        "dppo_tv": (DPPOTV(), "token_mean"),
        "corrected": (CorrectedObjective(GRPO(), Correction([RejectTokens(0.1, 10.0)], TIS())), "token_mean"),
    }.items()
}
RULES = {
    "token": RejectTokens(0.6, 1.6),
    "sequence": RejectSequences(0.25, 4.0),
    "geometric": RejectGeometric(0.8, 1.25),
    "k3": RejectK3(0.2),
    "veto": Veto(0.4),
}
READERS: dict[str, Objective] = {
    "dppo_tv": DPPOTV(),
    "decoupled_ppo": DecoupledPPO(),
    "decoupled tis": CorrectedObjective(GRPO(), Correction((), TIS())),
    "decoupled icepop": CorrectedObjective(GSPO(0.5, 0.5), Correction((), IcePop())),
    "decoupled opsm": CorrectedObjective(GRPO(), Correction(()), False, OPSM(0.0)),
    "bypass": CorrectedObjective(GRPO(), Correction(()), True),
    "bypass tis": CorrectedObjective(Reinforce(), Correction((), TIS()), True),
    "bypass icepop": CorrectedObjective(Reinforce(), Correction((), IcePop()), True),
    "bypass opsm": CorrectedObjective(GRPO(), Correction(()), True, OPSM(0.0)),
    "bypass dppo_tv": CorrectedObjective(DPPOTV(), Correction(()), True),
    **{f"decoupled {name}": CorrectedObjective(GRPO(), Correction([rule])) for name, rule in RULES.items()},
    **{f"bypass {name}": CorrectedObjective(GRPO(), Correction([rule]), True) for name, rule in RULES.items()},
}
"""Every kind of loss that reads the engine's log-probs, without terms that do not."""
ONE_OF_A_KIND = ["dppo_tv", "decoupled_ppo", "decoupled tis", "bypass"]
JUNK = (math.nan, -math.inf, math.inf)
CONFIG = OptimizerConfig(lr=1e-2, min_lr_ratio=1.0, eps=1e-3)
"""An epsilon beside the gradients: where they are smaller, Adam's step would hang on their last digits."""


def with_masked(name: str) -> TrainBatch:
    """The fixed batch with those rows masked, and its totals."""
    batch = fixed_batch()
    batch.mask_BT[MASKED[name]] = False
    if name == "all but one token":
        batch.mask_BT[5] &= batch.mask_BT[5].cumsum(0) == 3
    return batch.with_totals()


def trained_rows(batch: TrainBatch) -> TrainBatch:
    """The batch without the rows that have no trained token."""
    keep_B = batch.mask_BT.any(dim=1)
    tensors = {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), Tensor)}
    return replace(batch, **{name: value[keep_B] for name, value in tensors.items()}).with_totals()


def missing(name: str) -> Tensor:
    """Tokens whose engine log-prob is lost, bool [B, T]: every third and all of a response; a rank's; all."""
    mask_BT = fixed_batch().mask_BT
    if name == "some":
        lost_BT = mask_BT & (mask_BT.long().cumsum(1) % 3 == 1)
        lost_BT[3] = mask_BT[3]
        return lost_BT
    return mask_BT & (torch.arange(ROWS)[:, None] < (ROWS // 2 if name == "a rank's" else ROWS))


LOST = {"some": list(READERS), "a rank's": ONE_OF_A_KIND, "all": ONE_OF_A_KIND}
"""Which tokens lose their log-prob, and the losses that this is tried with."""


def near_batch(policy: Policy) -> TrainBatch:
    """The fixed batch, sampled by policies near this one: bands and clips let some tokens through and others not."""
    batch, generator = fixed_batch(), torch.Generator().manual_seed(4)
    own_BT = policy.log_probs(batch, 2)
    noise_2BT = torch.randn(2, *own_BT.shape, generator=generator)
    return replace(
        batch, old_log_probs_BT=own_BT + 0.3 * noise_2BT[0], rollout_log_probs_BT=own_BT + 0.6 * noise_2BT[1]
    )


def with_lost(batch: TrainBatch, name: str) -> TrainBatch:
    """The batch with NaN and infinities for the engine's log-probs of those tokens."""
    assert batch.rollout_log_probs_BT is not None
    lost_BT = missing(name)
    kinds = torch.tensor(JUNK)[torch.arange(int(lost_BT.sum())) % len(JUNK)]
    return replace(batch, rollout_log_probs_BT=batch.rollout_log_probs_BT.masked_scatter(lost_BT, kinds))


def every_case(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, Any]]:
    """Layout to case to gradients, metrics, updates."""
    results = {}
    for name, sizes in args["layouts"].items():
        recipe = tiny_recipe(world_size=world_size, temperature=TEMPERATURE, **sizes)
        layout = join_world(recipe.parallel, seed=1)
        policy = Policy(recipe, layout, VOCAB)
        found: dict[str, Any] = {}
        for case in MASKED:
            for loss in WHOLE:
                found[f"{case} {loss}"] = _gradient(policy, *WHOLE[loss], with_masked(case), args["size"])
                if args["references"] and case != "everything":
                    without = trained_rows(with_masked(case))
                    found[f"{case} {loss} wanted"] = _gradient(policy, *WHOLE[loss], without, len(without))
            found[f"{case} critic"] = _critic_update(layout, sizes, with_masked(case), args["size"])
            if args["references"] and case != "everything":
                without = trained_rows(with_masked(case))
                found[f"{case} critic wanted"] = _critic_update(layout, sizes, without, len(without))
        policy.load(random_weights(recipe.model, VOCAB, seed=3))
        batch = near_batch(policy)
        for case, losses in LOST.items():
            without = replace(batch, mask_BT=batch.mask_BT & ~missing(case)).with_totals()
            for loss in losses:
                lost = with_lost(batch, case)
                found[f"{case} {loss}"] = _gradient(policy, READERS[loss], "token_mean", lost, args["size"])
                if args["references"]:
                    found[f"{case} {loss} wanted"] = _gradient(policy, READERS[loss], "token_mean", without, ROWS)
        found["updates"] = _updates(policy, args["size"])
        results[name] = found
        parallel_state.destroy_model_parallel()
    return results


def _gradient(policy: Policy, loss: Objective, mode: str, batch: TrainBatch, size: int) -> Any:
    policy.load(random_weights(policy.recipe.model, VOCAB, seed=3))
    return gradient_of(policy, loss, Normalisation(mode), batch, size)


def _updates(policy: Policy, size: int) -> dict[str, Any]:
    """Updates on nothing, before and between others, and on one token; tokens trained and the weights after each."""

    def after(*batches: TrainBatch) -> tuple[list[int], list[dict[str, float]], dict[str, Tensor]]:
        policy.load(random_weights(policy.recipe.model, VOCAB, seed=3))
        policy.start_phase(CONFIG, 4)
        updates = [policy.update(batch, WHOLE["grpo"][0], micro_batch_size=size) for batch in batches]
        weights = {name: tensor.clone() for name, tensor in policy.export()}
        return [update.tokens for update in updates], [update.metrics for update in updates], weights

    nothing, one, batch = with_masked("everything"), with_masked("all but one token"), fixed_batch()
    return {
        "none": after(),
        "nothing": after(nothing),
        "two": after(batch, batch),
        "two around nothing": after(batch, nothing, batch),
        "one token": after(one),
    }


def _critic_update(layout: Layout, sizes: dict[str, int], batch: TrainBatch, size: int) -> dict[str, Any]:
    """The critic's values on the whole fixed batch, before and after an update on `batch`, and that update."""
    recipe = tiny_recipe(world_size=layout.world_size, **sizes)
    critic = Critic(recipe, layout, VOCAB)
    critic.load(random_weights(recipe.model, VOCAB, seed=3))
    if layout.is_last_stage:
        # a head of zeros would send no gradient to the body
        with torch.no_grad():
            critic.models[-1].output_layer.weight.copy_(torch.linspace(-1, 1, recipe.model.hidden_size)[None])
    critic.start_phase(CONFIG, 2)
    whole = fixed_batch()
    before = critic.values(whole, 2)
    old_BT = critic.values(batch, size)
    # of the sequence alone, so that leaving rows out does not change the others'
    returns_BT = torch.where(batch.mask_BT, old_BT + torch.sin(batch.targets_BT.float() + 1), math.nan)
    update = critic.update(replace(batch, old_values_BT=old_BT, returns_BT=returns_BT), micro_batch_size=size, clip=0.2)
    after = critic.values(whole, 2)
    return {"tokens": update.tokens, "metrics": update.metrics, "before": before, "after": after}

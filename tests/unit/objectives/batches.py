"""Random batches whose log-ratios are known, and what objectives and references make of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from megarl.objectives import (
    CISPO,
    DAPO,
    DPPOTV,
    GRPO,
    GSPO,
    K25,
    PPO,
    ClipCov,
    DecoupledPPO,
    DrGRPO,
    KLCov,
    Objective,
    Reinforce,
    TokenBatch,
)
from tests.unit.objectives import reference
from tests.unit.objectives.reference import Row, Sample, ragged_mask, uniform

ROWS, WIDTH = 6, 7
SHIFTS: Mapping[str, Sequence[float]] = {
    "ratio 1": (0.0,),
    "e^+-1": (1.0, -1.0),
    "+-40": (40.0, -40.0),
    "mixed": (0.0, 0.05, -0.05, 0.3, -0.3, 1.0, -1.0, 2.5, 19.0, -25.0),
}
INPUTS = (
    "log_probs_BT",
    "entropy_BT",
    "advantages_BT",
    "old_log_probs_BT",
    "rollout_log_probs_BT",
    "reference_log_probs_BT",
)

CASES: Mapping[str, tuple[Objective, Row]] = {
    "ppo": (PPO(), reference.ppo(0.2, 0.2)),
    "ppo dual": (PPO(0.1, 0.3, 1.5), reference.ppo(0.1, 0.3, 1.5)),
    "grpo": (GRPO(), reference.ppo(0.2, 0.2)),
    "dapo": (DAPO(), reference.ppo(0.2, 0.28)),
    "dr_grpo": (DrGRPO(), reference.ppo(0.2, 0.2)),
    "gspo": (GSPO(), reference.gspo(3e-4, 4e-4)),
    "gspo wide": (GSPO(0.5, 3.0), reference.gspo(0.5, 3.0)),
    "cispo": (CISPO(), reference.cispo(1.0, 4.0)),
    "cispo narrow": (CISPO(0.2, 0.5), reference.cispo(0.2, 0.5)),
    "k2_5": (K25(), reference.k2_5(0.9, 1.1, 1e-3)),
    "k2_5 wide": (K25(0.3, 4.0, 0.1), reference.k2_5(0.3, 4.0, 0.1)),
    "dppo_tv": (DPPOTV(), reference.dppo_tv(0.2)),
    "decoupled_ppo": (DecoupledPPO(), reference.decoupled_ppo(0.2, 0.2)),
    "reinforce": (Reinforce(), reference.reinforce()),
    "clip_cov": (ClipCov(), reference.clip_cov(1.0, 1.0)),
    "clip_cov narrow": (ClipCov(0.1, 0.3), reference.clip_cov(0.1, 0.3)),
    "kl_cov": (KLCov(), reference.kl_cov(1.0)),
    "kl_cov weak": (KLCov(beta=0.1), reference.kl_cov(0.1)),
}


def shifted_batch(shifts: Sequence[float], seed: int) -> TokenBatch:
    """A float64 batch whose log policy / old and log old / rollout go through `shifts`; all log-probs are below 0."""
    shape = (ROWS, WIDTH)
    order = torch.randperm(ROWS * WIDTH, generator=torch.Generator().manual_seed(seed)).view(shape)
    cycle = torch.tensor(shifts, dtype=torch.float64)
    policy, rollout, anchor = (cycle[order.roll(by) % len(cycle)] for by in (0, 1, 3))
    rollout = -rollout
    top = uniform(-3, -0.1, shape, seed) - torch.maximum(policy.clamp(min=0), rollout)
    return TokenBatch(
        log_probs_BT=(top + policy).requires_grad_(),
        mask_BT=ragged_mask(ROWS, WIDTH, seed),
        entropy_BT=uniform(0, 3, shape, seed + 1),
        advantages_BT=uniform(-2, 2, shape, seed + 2),
        old_log_probs_BT=top,
        rollout_log_probs_BT=top + rollout,
        reference_log_probs_BT=top + policy - anchor,
        selected_BT=uniform(0, 1, shape, seed + 3) < 0.4,
    )


def value_and_gradient(objective: Objective, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Loss [B, T], and the gradient of its sum by the log-probs."""
    loss_BT = objective(batch).loss_BT
    return loss_BT.detach(), torch.autograd.grad(loss_BT.sum(), batch.log_probs_BT)[0]


def samples_of(batch: TokenBatch, row: int) -> list[Sample]:
    """The trained tokens of a response."""
    names = ("log_probs_BT", "old_log_probs_BT", "rollout_log_probs_BT", "advantages_BT", "selected_BT")
    columns = [batch.given(name)[row][batch.mask_BT[row]].tolist() for name in names]
    return [Sample(*values) for values in zip(*columns, strict=True)]


def by_reference(token_rows: Row, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Loss and gradient [B, T], response by response."""
    loss, gradient = torch.zeros(2, *batch.mask_BT.shape, dtype=torch.float64)
    for row in range(len(batch.mask_BT)):
        samples = samples_of(batch, row)
        tokens = token_rows(samples) if samples else []
        loss[row, batch.mask_BT[row]] = torch.tensor([token.loss for token in tokens], dtype=torch.float64)
        gradient[row, batch.mask_BT[row]] = torch.tensor([token.gradient for token in tokens], dtype=torch.float64)
    return loss, gradient


def close(got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], rtol: float = 1e-6) -> None:
    """Value and gradient, both finite, to `rtol` relative."""
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=1e-12)


def spoilt(batch: TokenBatch, hidden_BT: Tensor, junk: float, names: Sequence[str] = INPUTS) -> TokenBatch:
    """The batch with junk in the hidden places of the tensors named; a selection is turned round there."""
    tensors = {name: batch.given(name).detach().masked_fill(hidden_BT, junk) for name in names}
    other = replace(batch, selected_BT=batch.given("selected_BT") ^ hidden_BT, **tensors)
    return replace(other, log_probs_BT=other.log_probs_BT.detach().requires_grad_())


def identical(objective: Objective, one: TokenBatch, other: TokenBatch) -> None:
    """Loss, gradient and metrics are the same, bit for bit."""
    for mine, theirs in zip(value_and_gradient(objective, one), value_and_gradient(objective, other), strict=True):
        assert torch.equal(mine, theirs)
    mine, theirs = objective(one).metrics, objective(other).metrics
    assert mine.keys() == theirs.keys()
    for name, sums in mine.items():
        assert all(torch.equal(a, b) for a, b in zip(sums, theirs[name], strict=True)), name

"""An objective that says its terms are local to the token gives each token alone what it gives it in the batch."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from megarl.drift.corrections import OPSM, TIS, CorrectedObjective, Correction, RejectGeometric, RejectTokens
from megarl.objectives import SFT, EntropyBonus, KLPenalty, Objective, TokenBatch
from megarl.objectives.batch import is_token_local
from tests.unit.objectives.batches import CASES, SHIFTS, shifted_batch, value_and_gradient

BY_TOKEN, BY_RESPONSE = Correction([RejectTokens(0.5, 2.0)], TIS(2.0)), Correction([RejectGeometric(0.5, 2.0)])
LOCAL: dict[str, Objective] = {name: objective for name, (objective, _) in CASES.items() if "gspo" not in name}
LOCAL |= {
    "sft": SFT(),
    "wrapped": EntropyBonus(KLPenalty(CASES["grpo"][0], 0.04, importance_weighted=True, cap=0.5), 0.1),
    "decoupled": CorrectedObjective(CASES["ppo"][0], BY_TOKEN),
    "bypass": CorrectedObjective(CASES["reinforce"][0], BY_TOKEN, bypass=True),
}
NOT_LOCAL: dict[str, Objective] = {
    "gspo": CASES["gspo"][0],
    "wrapped gspo": EntropyBonus(KLPenalty(CASES["gspo"][0], 0.04)),
    "exact KL": KLPenalty(CASES["ppo"][0], 0.04, "full"),
    "response rejected": CorrectedObjective(CASES["ppo"][0], BY_RESPONSE),
    "opsm": CorrectedObjective(CASES["reinforce"][0], Correction(), opsm=OPSM(0.3)),
}


def alone(batch: TokenBatch, row: int, column: int) -> TokenBatch:
    """One token of the batch, as a batch."""
    given = {f.name: getattr(batch, f.name) for f in fields(batch)}
    cut = {
        name: value.detach()[row : row + 1, column : column + 1] for name, value in given.items() if value is not None
    }
    return TokenBatch(**{**cut, "log_probs_BT": cut["log_probs_BT"].clone().requires_grad_()})


def differs_alone(objective: Objective, batch: TokenBatch) -> bool:
    """Whether any trained token's loss or gradient is another one when it is alone."""
    loss_BT, gradient_BT = value_and_gradient(objective, batch)
    pairs: list[tuple[Tensor, Tensor]] = []
    for row, column in batch.mask_BT.nonzero().tolist():
        loss, gradient = value_and_gradient(objective, alone(batch, row, column))
        pairs += [(loss[0, 0], loss_BT[row, column]), (gradient[0, 0], gradient_BT[row, column])]
    return any(not torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("shifts", SHIFTS.values(), ids=list(SHIFTS))
@pytest.mark.parametrize("name", LOCAL)
def test_token_local_objectives_are(name: str, shifts: tuple[float, ...]) -> None:
    assert is_token_local(LOCAL[name])
    assert not differs_alone(LOCAL[name], shifted_batch(shifts, 3))


@pytest.mark.parametrize("name", NOT_LOCAL)
def test_what_reads_a_whole_response_says_so(name: str) -> None:
    assert not is_token_local(NOT_LOCAL[name])


@pytest.mark.parametrize("name", [name for name in NOT_LOCAL if name != "exact KL"])
def test_the_comparison_can_tell(name: str) -> None:
    objective = NOT_LOCAL[name]
    batch = shifted_batch(SHIFTS["mixed"], 3)
    assert differs_alone(objective, replace(batch, old_log_probs_BT=batch.given("old_log_probs_BT") * 0.9))


def test_an_objective_that_says_nothing_is_not_local() -> None:
    class Silent:
        needs: frozenset[str] = frozenset()

        def __call__(self, batch: TokenBatch):  # type: ignore[no-untyped-def]
            return SFT()(batch)

    assert not is_token_local(Silent())

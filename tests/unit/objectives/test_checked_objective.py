"""A user's objective that breaks a promise is told so, before it trains on a gradient that nobody meant."""

from typing import Any

import pytest
import torch

from megarl.config.errors import RecipeError
from megarl.config.objective import ObjectiveConfig
from megarl.objectives import ObjectiveOutput, TokenBatch, build_objective
from megarl.objectives.checked import CheckedObjective


class Own:
    """A user's objective: what it returns, and what it says of itself, as the test gives it."""

    def __init__(self, returns: Any = None, needs: Any = (), token_local: Any = False) -> None:
        self.returns, self.needs, self.token_local = returns, frozenset(needs), token_local

    def __call__(self, batch: TokenBatch) -> Any:
        """What the test wants returned for the batch."""
        return self.returns(batch)

    def select(self, covariance_BT: Any, mask_BT: Any, generator: Any) -> Any:
        """Likewise."""
        return self.returns(mask_BT)


class TakesNothing:
    """A user's objective with a wrong signature."""

    needs: frozenset[str] = frozenset()

    def __call__(self) -> None:
        """Is never called."""


def batch(rows: int = 2, width: int = 3) -> TokenBatch:
    """Log-probs that carry a gradient."""
    log_probs_BT = torch.full((rows, width), -1.0, requires_grad=True)
    return TokenBatch(log_probs_BT, torch.ones(rows, width, dtype=torch.bool), torch.ones(rows, width))


def output(terms: Any, **metrics: Any) -> Any:
    """A function from the batch to what it returns."""
    return lambda batch: ObjectiveOutput(terms(batch), metrics)


def fine(batch: TokenBatch) -> torch.Tensor:
    """A loss of the right shape."""
    return -batch.log_probs_BT


ONE = torch.ones(())
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": (lambda batch: None, TypeError, "own.f returned a NoneType, not an ObjectiveOutput"),
    "the loss alone": (fine, TypeError, "own.f returned a Tensor, not an ObjectiveOutput"),
    "a scalar": (output(lambda b: fine(b).sum()), ValueError, r"of shape \(\), not one term a token, \(2, 3\)"),
    "a term a row": (output(lambda b: fine(b).sum(1, keepdim=True)), ValueError, r"of shape \(2, 1\)"),
    "a term a column": (output(lambda b: fine(b).sum(0)), ValueError, r"of shape \(3,\)"),
    "a number": (output(lambda b: 1.0), ValueError, "a loss of a float, not one term a token"),
    "no gradient": (output(lambda b: fine(b).detach()), ValueError, "a loss without a gradient"),
    "the loss's own name": (output(fine, loss=(ONE, ONE)), ValueError, "a metric named loss"),
    "a name of the run's": (output(fine, **{"reward/mean": (ONE, ONE)}), ValueError, "a metric named reward/mean"),
    "the gradient norm's": (output(fine, **{"policy/grad_norm": (ONE, ONE)}), ValueError, "named policy/grad_norm"),
    "a metric without a count": (output(fine, share=ONE), TypeError, "the metric share as no pair of scalar tensors"),
    "a metric of numbers": (output(fine, share=(1.0, 2)), TypeError, "the metric share as no pair"),
    "a metric a token": (output(fine, share=(torch.ones(2, 3), ONE)), TypeError, "the metric share as no pair"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("token_local", [False, True])
def test_what_it_returns(case: str, token_local: bool) -> None:
    returns, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        CheckedObjective(Own(returns, token_local=token_local), "own.f")(batch())


def test_a_right_answer_is_handed_on() -> None:
    given = ObjectiveOutput(batch().log_probs_BT, {"own/share": (ONE, ONE)})
    checked = CheckedObjective(Own(lambda batch: given, needs=["advantages_BT"], token_local=True), "own.f")
    assert checked(batch()) is given
    assert checked.needs == {"advantages_BT"}
    assert checked.token_local


def test_one_without_a_gradient_may_be_asked_where_there_is_none() -> None:
    without = TokenBatch(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2))
    assert CheckedObjective(Own(output(fine)), "own.f")(without).loss_BT.shape == (1, 2)


@pytest.mark.parametrize("wrong", [lambda mask: mask[0], lambda mask: mask.float(), lambda mask: None])
def test_what_it_selects(wrong: Any) -> None:
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    generator = torch.Generator()
    with pytest.raises(ValueError, match=r"own.f.select returned .*, not a torch.bool tensor of shape \(2, 3\)"):
        CheckedObjective(Own(wrong), "own.f").select(mask_BT.double(), mask_BT, generator)
    selected_BT = CheckedObjective(Own(lambda mask: mask), "own.f").select(mask_BT.double(), mask_BT, generator)
    assert selected_BT is mask_BT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"needs": ["advantagez_BT"]}, "needs advantagez_BT, which no batch has; name some of advantages_BT, "),
        ({"needs": ["reference_kl_BT"], "token_local": True}, "which a token_local one cannot read"),
        ({"token_local": "no"}, "whose token_local is neither True nor False"),
    ],
)
def test_what_it_says_of_itself(options: dict[str, Any], message: str) -> None:
    """Found before anything starts."""
    with pytest.raises(RecipeError, match=rf"^rl\.objective\.name=.*{message}"):
        build_objective(ObjectiveConfig(name=f"{__name__}.Own", options=options))


def test_a_wrong_signature() -> None:
    with pytest.raises(RecipeError, match=r"one TokenBatch .too many positional arguments"):
        build_objective(ObjectiveConfig(name=f"{__name__}.TakesNothing"))

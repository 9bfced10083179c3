"""Batches with next to nothing in them: no NaN, no hang, and what is there is trained as if it were alone."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parallel.degenerate_worker import LOST, MASKED, WHOLE, missing, with_masked
from tests.parallel.gradient_worker import fixed_batch
from tests.parallel.world import run_world

pytestmark = pytest.mark.parallel

RELATIVE = 1e-5
LAYOUTS: dict[str, dict[str, Any]] = {"dp2": {}, "tp2": {"tensor": 2}, "pp2": {"pipeline": 2}}
EVERYWHERE = ("one", *LAYOUTS)
TRAINING = [name for name in MASKED if name != "everything"]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """What rank 0 saw under every layout; micro-batches of 2 rows."""
    target = "tests.parallel.degenerate_worker:every_case"
    one = run_world(target, 1, {"layouts": {"one": {}}, "size": 2, "references": True}, 200)[0]
    two = run_world(target, 2, {"layouts": LAYOUTS, "size": 2, "references": False}, 200)
    return {**one, **two[0]}


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor], factor: float = 1.0) -> None:
    """Relative to each tensor's largest entry: single entries of a sum may cancel to nothing."""
    assert got.keys() == wanted.keys()
    assert any(tensor.any() for tensor in wanted.values()), "a comparison of zeros would show nothing"
    for name, tensor in wanted.items():
        assert (got[name] - factor * tensor).abs().max() <= RELATIVE * factor * tensor.abs().max(), name


def all_zero(gradient: dict[str, Tensor]) -> bool:
    return not any(tensor.any() for tensor in gradient.values())


@pytest.mark.parametrize("layout", EVERYWHERE)
@pytest.mark.parametrize("loss", WHOLE)
@pytest.mark.parametrize("case", TRAINING)
def test_masked_rows_are_as_if_they_were_not_there(case: str, loss: str, layout: str, found: dict[str, Any]) -> None:
    gradient, sums = found[layout][f"{case} {loss}"]
    wanted, _ = found["one"][f"{case} {loss} wanted"]
    assert_same(gradient, wanted)
    assert sums["policy/entropy"][1] == sums["loss"][1] == int(with_masked(case).mask_BT.sum())


@pytest.mark.parametrize("layout", EVERYWHERE)
@pytest.mark.parametrize("loss", WHOLE)
def test_nothing_to_train_has_a_gradient_of_zero(loss: str, layout: str, found: dict[str, Any]) -> None:
    gradient, sums = found[layout][f"everything {loss}"]
    assert all_zero(gradient)
    assert all(pair == (0.0, 0.0) for pair in sums.values())


@pytest.mark.parametrize("layout", EVERYWHERE)
def test_an_update_on_nothing_changes_nothing(layout: str, found: dict[str, Any]) -> None:
    """Neither the weights nor, as the update after it shows, the optimizer."""
    updates = found[layout]["updates"]
    every = int(fixed_batch().mask_BT.sum())
    assert updates["nothing"][:2] == ([0], [{}])
    assert updates["two around nothing"][0] == [every, 0, every]
    for name, same in (("nothing", "none"), ("two around nothing", "two")):
        for tensor, wanted in zip(updates[name][2].values(), updates[same][2].values(), strict=True):
            assert torch.equal(tensor, wanted)
    assert any((updates["two"][2][name] != tensor).any() for name, tensor in updates["none"][2].items())


@pytest.mark.parametrize("layout", EVERYWHERE)
def test_an_update_on_one_token(layout: str, found: dict[str, Any]) -> None:
    tokens, metrics, weights = found[layout]["updates"]["one token"]
    wanted = found["one"]["updates"]["one token"]
    assert tokens == [1]
    assert metrics[0] == pytest.approx(wanted[1][0], rel=RELATIVE)
    assert_same(weights, wanted[2])
    assert any((tensor != found[layout]["updates"]["none"][2][name]).any() for name, tensor in weights.items())


@pytest.mark.parametrize("layout", EVERYWHERE)
@pytest.mark.parametrize("case", MASKED)
def test_the_critic(case: str, layout: str, found: dict[str, Any]) -> None:
    """Returns are NaN outside the mask; what is trained moves the values as if it were alone."""
    got = found[layout][f"{case} critic"]
    assert got["tokens"] == int(with_masked(case).mask_BT.sum())
    if case == "everything":
        assert torch.equal(got["before"], got["after"]) and got["metrics"] == {}
        return
    wanted = found["one"][f"{case} critic wanted"]
    moved, wanted_moved = got["after"] - got["before"], wanted["after"] - wanted["before"]
    assert wanted_moved.abs().max() > 0.01
    # the difference carries the rounding of the values
    assert (moved - wanted_moved).abs().max() <= RELATIVE * wanted["after"].abs().max()
    assert got["metrics"] == pytest.approx(wanted["metrics"], rel=1e-4, abs=1e-6)
    assert all(math.isfinite(value) for value in got["metrics"].values())


@pytest.mark.parametrize("layout", EVERYWHERE)
@pytest.mark.parametrize(("case", "loss"), [(case, loss) for case, losses in LOST.items() for loss in losses])
def test_tokens_without_an_engine_log_prob(case: str, loss: str, layout: str, found: dict[str, Any]) -> None:
    """They have no loss, stay in the denominator, and are counted."""
    gradient, sums = found[layout][f"{case} {loss}"]
    lost, tokens = int(missing(case).sum()), int(fixed_batch().mask_BT.sum())
    corrected = "correction/unusable_share" in sums
    assert corrected == (loss not in ("dppo_tv", "decoupled_ppo"))
    assert sums["correction/unusable_share" if corrected else "policy/unusable_share"] == (lost, tokens)
    if case == "all":
        assert all_zero(gradient)
        return
    wanted, wanted_sums = found["one"][f"{case} {loss} wanted"]
    assert_same(gradient, wanted, factor=(tokens - lost) / tokens)
    if corrected:
        assert sums["correction/kept_share"][0] == wanted_sums["correction/kept_share"][0]


@pytest.mark.parametrize("mode", ["decoupled", "bypass"])
@pytest.mark.parametrize("rule", ["token", "sequence", "geometric", "k3", "veto", "opsm"])
def test_the_rules_of_these_batches_act(rule: str, mode: str, found: dict[str, Any]) -> None:
    """Of the tokens with a log-prob some stay and some go, so that a rule that read another's would show."""
    _, sums = found["one"][f"some {mode} {rule} wanted"]
    name = "correction/opsm_dropped_share" if rule == "opsm" else "correction/kept_share"
    assert 0 < sums[name][0] < sums[name][1]

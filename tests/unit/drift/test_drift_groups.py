"""Drift of groups of tokens: the parts add up to the whole, and each token is where it belongs."""

import pytest
import torch
from torch import Tensor

from megarl.config.drift_names import CLASSES, COUNTS, bad_side, boundable
from megarl.drift import TokenClass, drift_metrics
from tests.unit.drift.exact_drift import Token, group, responses
from tests.unit.objectives.reference import ragged_mask, uniform

VOCABULARY = 50


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs of both sides, a mask and the tokens; token 49 is there once."""
    rollout = uniform(-5, 0, (12, 30), 1)
    mask = ragged_mask(12, 30, 1)
    ids = uniform(0, 45, mask.shape, 3).long()
    ids[2, mask[2].nonzero()[0, 0]] = 49
    return rollout + uniform(-1, 1, mask.shape, 2), rollout, mask, ids


def classes_of_vocabulary() -> Tensor:
    classes = torch.zeros(VOCABULARY, dtype=torch.int64)
    classes[:10] = TokenClass.DIGITS
    classes[10] = TokenClass.END
    classes[11:13] = TokenClass.SPECIAL
    return classes


def of_group(metrics: dict[str, float], name: str) -> dict[str, float]:
    return {key.removeprefix(f"{name}/"): value for key, value in metrics.items() if key.startswith(f"{name}/")}


def test_kinds_of_token() -> None:
    trainer, rollout, mask, ids = batch()
    metrics = drift_metrics(trainer, rollout, mask, token_ids_BT=ids, classes_V=classes_of_vocabulary())
    tokens = [token for row in responses(trainer, rollout, mask) for token in row]
    generated = [int(ids[token.column]) for token in tokens]

    def those(belongs: list[bool]) -> dict[str, float]:
        members: list[Token] = [token for token, member in zip(tokens, belongs, strict=True) if member]
        return group(members)

    wanted = {
        "class_digits": those([token < 10 for token in generated]),
        "class_end": those([token == 10 for token in generated]),
        "class_special": those([token in (11, 12) for token in generated]),
        "class_first": those([token.position == 0 for token in tokens]),
        "class_rare": those([generated.count(token) == 1 for token in generated]),
    }
    assert tuple(wanted) == CLASSES
    assert all(wanted.values())
    for name, measures in wanted.items():
        assert of_group(metrics, name) == pytest.approx(measures, rel=1e-9), name


def test_kinds_stand_in_the_order_of_their_names() -> None:
    assert tuple(f"class_{kind.name.lower()}" for kind in TokenClass if kind.name) == CLASSES
    assert [kind.value for kind in TokenClass] == [2**bit for bit in range(len(CLASSES))]


def test_replicas_and_ages() -> None:
    trainer, rollout, mask, _ = batch()
    replicas = torch.arange(12)[:, None].expand(mask.shape) % 4 - 1
    ages = (torch.arange(30)[None].expand(mask.shape) < 10).long() * 2
    metrics = drift_metrics(trainer, rollout, mask, replicas_BT=replicas, ages_BT=ages)
    tokens = [token for row in responses(trainer, rollout, mask) for token in row]
    for name, number_of in {"replica": replicas, "age": ages}.items():
        for number in range(int(number_of.max()) + 1):
            members = [token for token in tokens if number_of[token.column] == number]
            assert of_group(metrics, f"{name}_{number}") == pytest.approx(group(members), rel=1e-9)
    known = sum(metrics[f"replica_{number}/tokens"] for number in range(3))
    assert known == sum(bool(replicas[token.column] >= 0) for token in tokens) < len(tokens)
    assert "age_1/tokens" not in metrics
    assert metrics["age_0/tokens"] + metrics["age_2/tokens"] == len(tokens)


def test_a_bound_may_be_given_for_every_measure_and_for_nothing_else() -> None:
    trainer, rollout = uniform(-5, 0, (2, 30, 5000), 1)
    mask = torch.ones(30, 5000, dtype=torch.bool)
    ids = uniform(0, VOCABULARY, mask.shape, 3).long()
    # each kind of token, and one that is there once
    ids[ids == 49], ids[0, 0] = 20, 49
    zeros = torch.zeros_like(ids)
    given = {"token_ids_BT": ids, "classes_V": classes_of_vocabulary(), "replicas_BT": zeros, "ages_BT": zeros}
    # a probability below 1 %, and one above 99 %
    rollout[0, 1], rollout[0, 2] = -9.0, -1e-6
    metrics = drift_metrics(trainer, rollout, mask, **given)
    counts = {name for name in metrics if name.rpartition("/")[2] in COUNTS}
    # of the engine's truncation and routing, which are no log-probs
    elsewhere = {"outside_support_share", "routing_agreement", "routing_overlap"}
    assert metrics.keys() - counts == set(boundable()) - elsewhere
    assert all(bad_side(name) for name in metrics.keys() - counts)


@pytest.mark.parametrize("kind", ["position", "probability"])
def test_ranges_hold_every_token_once(kind: str) -> None:
    trainer, rollout, mask, _ = batch()
    # certain tokens too, and impossible ones
    rollout[0], rollout[1] = 0.0, -1e4
    metrics = drift_metrics(trainer, rollout, mask)
    counts = [value for name, value in metrics.items() if name.startswith(f"{kind}_") and name.endswith("/tokens")]
    assert sum(counts) == metrics["tokens"]
    weighted = [
        metrics[name] * metrics[name.replace("abs_mean", "tokens")]
        for name in metrics
        if name.startswith(f"{kind}_") and name.endswith("/abs_mean")
    ]
    assert sum(weighted) / metrics["tokens"] == pytest.approx(metrics["abs_mean"], rel=1e-12)


def test_a_response_cut_off_by_the_mask_counts_positions_from_its_own_first_token() -> None:
    mask = torch.zeros(1, 40, dtype=torch.bool)
    mask[0, 10:] = True
    mask[0, 20] = False
    metrics = drift_metrics(torch.full((1, 40), -1.0), torch.full((1, 40), -2.0), mask)
    assert (metrics["position_0_15/tokens"], metrics["position_16_63/tokens"]) == (16, 13)

"""Bounds on drift: of measures that there are, of the form that each takes; and who picks the correction."""

from collections.abc import Callable

import pytest

from megarl.config.check_drift import ACTIONS
from megarl.config.drift_names import BOTH_ARE_BAD, COUNTS, HIGH_IS_BAD, LOW_IS_BAD, bad_side, boundable
from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe

Write = Callable[[str, str], str]

REFUSED = {
    "drift.warn={abs_meen: 0.1}": "drift.warn[abs_meen]=0.1 is of no measure of drift; did you mean abs_mean?",
    "drift.stop={drift/abs_p9: 0.1}": "drift.stop[drift/abs_p9]=0.1 is of no measure of drift; did you mean abs_p99?",
    "drift.stop={zzzzzz: 0.1}": "drift.stop[zzzzzz]=0.1 is of no measure of drift; name a measure of docs/drift.md.",
    "drift.warn={tokens: 5}": "drift.warn[tokens]=5 is a bound on a count, which is no drift; take it out.",
    "drift.warn={position_0_15/tokens: 5}": (
        "drift.warn[position_0_15/tokens]=5 is of no measure of drift; did you mean position_0_15/k3?"
    ),
    "drift.skip_update={k1: 0.1}": (
        "drift.skip_update[k1]=0.1 is no band, and this measure is bad on either side; "
        "give the smallest and the largest value that pass, such as [-0.01, 0.01]."
    ),
    "drift.skip_update={ppl_ratio: [1.1, 0.9]}": (
        "drift.skip_update[ppl_ratio]=[1.1, 0.9] is no band, and this measure is bad on either side; "
        "give the smallest and the largest value that pass, such as [-0.01, 0.01]."
    ),
    "drift.warn={abs_mean: much}": ("drift.warn[abs_mean]=much is no number; give the largest value that passes."),
    "drift.warn={ess_share: true}": ("drift.warn[ess_share]=true is no number; give the smallest value that passes."),
    "drift.warn={k3: -0.1}": (
        "drift.warn[k3]=-0.1 is crossed at every step: the measure is never below 0; give at least 0."
    ),
    "drift.warn={ess_share: 50}": "drift.warn[ess_share]=50 is no share or correlation; give 0 to 1.",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_no_step_could_be_held_to_is_refused(override: str, write: Write) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write("a.yaml", ""), [override])
    assert str(caught.value) == REFUSED[override]


def test_every_measure_takes_a_bound_of_its_form(write: Write) -> None:
    forms = {"high": "0.25", "low": "0.5", "both": "[-0.5, 0.5]"}
    bounds = ", ".join(f"{name}: {forms[bad_side(name) or '']}" for name in boundable())
    for action in ACTIONS:
        loaded = load_recipe(write("a.yaml", ""), [f"drift.{action}={{{bounds}}}"])
        assert list(getattr(loaded.recipe.drift, action)) == list(boundable())


def test_a_measure_has_one_side() -> None:
    names = [*HIGH_IS_BAD, *LOW_IS_BAD, *BOTH_ARE_BAD, *COUNTS]
    assert len(set(names)) == len(names)
    assert bad_side("replica_12/k3") == bad_side("age_3/abs_mean") == "high"
    assert bad_side("replica_x/k3") is bad_side("abs_mean/k3") is bad_side("tokens") is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rl.correction.mode=decoupled", "rl.correction.weighting=tis"],
            "drift.correction=auto picks the correction, and rl.correction.mode=decoupled gives one; "
            "set rl.correction.mode=none or drift.correction=given.",
        ),
        (
            ["rl.objective.name=dppo_tv"],
            "drift.correction=auto would correct a second time what rl.objective.name=dppo_tv corrects by its own "
            "ratio to the engine; set drift.correction=given.",
        ),
    ],
)
def test_nothing_is_corrected_twice(overrides: list[str], message: str, write: Write) -> None:
    path = write("a.yaml", "drift: {correction: auto}")
    load_recipe(path, [])
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    assert str(caught.value) == message


def test_auto_answers_for_responses_that_span_an_update(write: Write) -> None:
    spanning = ["rollout.engine=vllm", "rl.asynchrony.mode=fully_async", "rl.asynchrony.spanning=correct"]
    load_recipe(write("a.yaml", "drift: {correction: auto}"), spanning)
    with pytest.raises(RecipeError, match="needs importance weights"):
        load_recipe(write("b.yaml", ""), spanning)

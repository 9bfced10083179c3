"""What a refused correction is told to set is accepted: no fix leads to a refusal of what it set."""

import re
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest

from megarl.config.errors import RecipeError
from megarl.config.objective import CorrectionConfig, ObjectiveConfig
from megarl.config.schema import Recipe
from megarl.config.training import RLConfig
from megarl.config.validate import validate

SETTINGS: dict[str, tuple[Any, ...]] = {
    "mode": ("none", "decoupled", "bypass"),
    "weighting": ("none", "tis", "icepop"),
    "veto": (None, 1e-4),
    "opsm": (None, 1e-4),
    "normalise": ("all", "kept"),
    "updates_per_step": (1, 2),
}
WORDS = {"null": None, "above 1": 2}


def refused(objective: str, settings: dict[str, Any]) -> str | None:
    """The refusal of a recipe with these settings; None where it is accepted."""
    correction = {name: value for name, value in settings.items() if name in asdict(CorrectionConfig())}
    rl = RLConfig(
        updates_per_step=settings["updates_per_step"],
        objective=ObjectiveConfig(name=objective),
        correction=CorrectionConfig(**correction),
    )
    try:
        validate(replace(Recipe(), rl=rl))
    except RecipeError as error:
        return str(error)
    return None


def fixes(message: str) -> list[dict[str, Any]]:
    """What each alternative of the message's fix sets."""
    found = []
    for alternative in message.split("; ")[1].removeprefix("set ").rstrip(".").split(" or "):
        pairs = re.findall(r"([a-z_]+)(?:=| )(above 1|\w+)", alternative.replace("rl.", ""))
        sets = {name: WORDS.get(value, value) for name, value in pairs if name in SETTINGS}
        if sets:
            found.append(sets)
    return found


@pytest.mark.parametrize("objective", ["ppo", "reinforce", "decoupled_ppo", "dppo_tv"])
def test_a_correction_that_is_mended_as_told_is_accepted(objective: str) -> None:
    seen = 0
    for values in product(*SETTINGS.values()):
        settings = dict(zip(SETTINGS, values, strict=True))
        if objective == "reinforce" and settings["updates_per_step"] > 1:
            continue
        message = refused(objective, settings)
        for fix in fixes(message) if message else []:
            seen += 1
            after = refused(objective, {**settings, **fix})
            key = after.split("=")[0].rpartition(".")[2] if after else None
            assert key not in fix, f"{settings}: {message} Then: {after}"
    assert seen > 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"weighting": "icepop", "high": 0.9},
            "rl.correction.high=0.9 is not above 1, so that tokens without any drift weigh 0; give more than 1.",
        ),
        (
            {"veto": 1.0},
            "rl.correction.veto=1.0 drops every response with any ratio below 1, which is nearly every response; "
            "give less, such as 0.0001.",
        ),
    ],
)
def test_bands_without_room(settings: dict[str, Any], message: str) -> None:
    assert refused("ppo", {"mode": "decoupled", "updates_per_step": 1, **settings}) == message

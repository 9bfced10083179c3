"""Cross-field checks of the correction for the engine: what it asks for, and the objectives that can take it."""

from megarl.config.names import KNOWN_OBJECTIVES
from megarl.config.objective import CorrectionConfig
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe

_BANDS = ("reject_token", "reject_sequence", "reject_geometric")
_RULES = (*_BANDS, "reject_k3", "veto")
CORRECTS_ITSELF = ("decoupled_ppo", "dppo_tv")
"""Objectives with a ratio of their own to the engine."""


def _has_ratio(objective: str) -> bool:
    """Whether a registered objective weighs by its ratio; of a user's own that is seen once it is built."""
    return objective in KNOWN_OBJECTIVES and objective != "reinforce"


def _rules(correction: CorrectionConfig) -> list[str]:
    """The rules that drop tokens before the update."""
    return [name for name in _RULES if getattr(correction, name) is not None]


def _asked(correction: CorrectionConfig) -> list[str]:
    """All keys that ask the correction to do something."""
    opsm = [] if correction.opsm is None else ["opsm"]
    return _rules(correction) + opsm + ([] if correction.weighting == "none" else ["weighting"])


def corrects_for_the_engine(recipe: Recipe) -> bool:
    """Whether importance weights, rejections or the objective's own ratio answer for who sampled a token."""
    if recipe.drift.correction == "auto":
        return True
    correction = recipe.rl.correction
    weighs = correction.weighting != "none" or bool(_rules(correction))
    return recipe.rl.objective.name in CORRECTS_ITSELF or correction.mode == "bypass" or weighs


def _modes_that_fit(recipe: Recipe) -> list[str]:
    """The modes that no check below refuses with the recipe's other keys, so that a message can name them."""
    correction, name = recipe.rl.correction, recipe.rl.objective.name
    weighs = correction.weighting != "none"
    idle = correction.opsm is not None and recipe.rl.updates_per_step == 1
    decoupled = bool(_asked(correction)) and not idle and not (weighs and name in CORRECTS_ITSELF)
    bypass = not (weighs and _has_ratio(name)) and name != "decoupled_ppo" and correction.normalise == "all"
    return [mode for mode, fits in (("decoupled", decoupled), ("bypass", bypass)) if fits]


def correction_that_is_off_asks_nothing(recipe: Recipe) -> None:
    """A correction that is off has no settings."""
    correction = recipe.rl.correction
    asked = _asked(correction)
    if correction.mode == "none" and asked:
        name = asked[0]
        modes = " or ".join(f"mode={mode}" for mode in _modes_that_fit(recipe))
        unset = " and ".join(f"{key}={'none' if key == 'weighting' else 'null'}" for key in asked)
        reason = "does nothing with rl.correction.mode=none"
        raise refusal(f"rl.correction.{name}", getattr(correction, name), reason, f"set {modes or unset}")


def correction_that_is_on_does_something(recipe: Recipe) -> None:
    """Each setting has something to work on."""
    correction = recipe.rl.correction
    if correction.mode == "decoupled" and not _asked(correction):
        reason = "asks for a correction and names none"
        raise refusal("rl.correction.mode", correction.mode, reason, "set weighting, a rejection, veto or opsm")
    if correction.normalise == "kept" and not _rules(correction):
        reason = "has nothing to take out: no rule drops a token before the update"
        raise refusal("rl.correction.normalise", "kept", reason, "set normalise=all or a rejection")
    if correction.opsm is not None and correction.mode == "decoupled" and recipe.rl.updates_per_step == 1:
        fixes = ["mode=bypass"] if "bypass" in _modes_that_fit(recipe) else []
        # reinforce is refused more than one update
        fixes += [] if recipe.rl.objective.name == "reinforce" else ["rl.updates_per_step above 1"]
        reason = "never drops anything: at the only update of a step the policy is still the old one"
        raise refusal("rl.correction.opsm", correction.opsm, reason, f"set {' or '.join(fixes) or 'opsm=null'}")


def correction_bands_hold_1(recipe: Recipe) -> None:
    """Where there is no drift, every ratio is 1, and nothing is dropped or shrunk."""
    correction = recipe.rl.correction
    for name in _BANDS:
        band = getattr(correction, name)
        if band is not None and not (len(band) == 2 and 0 <= band[0] < 1 < band[1]):
            raise refusal(f"rl.correction.{name}", band, "is no band around a ratio of 1", "write it like [0.9, 1.1]")
    if correction.veto == 1:
        reason = "drops every response with any ratio below 1, which is nearly every response"
        raise refusal("rl.correction.veto", correction.veto, reason, "give less, such as 0.0001")
    if correction.weighting == "icepop" and correction.low >= 1:
        reason = "is not below 1, so that tokens without any drift weigh 0"
        raise refusal("rl.correction.low", correction.low, reason, "give less than 1")
    if correction.weighting == "icepop" and correction.high <= 1:
        reason = "is not above 1, so that tokens without any drift weigh 0"
        raise refusal("rl.correction.high", correction.high, reason, "give more than 1")
    if correction.weighting == "tis" and correction.cap < 1:
        reason = "is below 1, so that it shrinks every token's term where there is no drift too"
        raise refusal("rl.correction.cap", correction.cap, reason, "give at least 1")


def nothing_is_corrected_twice(recipe: Recipe) -> None:
    """Some objectives weigh by their own ratio to the engine, and in bypass mode all do that have a ratio."""
    correction, name = recipe.rl.correction, recipe.rl.objective.name
    if correction.weighting == "none":
        return
    if name in CORRECTS_ITSELF:
        reason = f"corrects a second time what rl.objective.name={name} corrects by its own ratio to the engine"
        mode = ""
        if _asked(correction) == ["weighting"] and (name == "decoupled_ppo" or correction.mode == "decoupled"):
            mode = " and mode=none"
        elif name == "decoupled_ppo" and correction.mode == "bypass":
            mode = " and mode=decoupled"
        raise refusal("rl.correction.weighting", correction.weighting, reason, f"set weighting=none{mode}")
    if correction.mode == "bypass" and _has_ratio(name):
        reason = "weighs twice: in rl.correction.mode=bypass the objective's own ratio is policy / engine"
        decoupled = " or mode=decoupled" if "decoupled" in _modes_that_fit(recipe) else ""
        raise refusal("rl.correction.weighting", correction.weighting, reason, f"set weighting=none{decoupled}")


def bypass_fits(recipe: Recipe) -> None:
    """It has no old policy, and denominators are known before the update."""
    correction, name = recipe.rl.correction, recipe.rl.objective.name
    if correction.mode != "bypass":
        return
    decoupled = "decoupled" in _modes_that_fit(recipe)
    if name == "decoupled_ppo":
        reason = "has no old policy, which rl.objective.name=decoupled_ppo is about"
        mode = "decoupled" if decoupled or _rules(correction) else "none"
        # the one thing asked for that neither mode takes, at a step's only update
        opsm = " and opsm=null" if correction.opsm is not None and not decoupled else ""
        raise refusal("rl.correction.mode", "bypass", reason, f"set mode={mode}{opsm}")
    if correction.normalise == "kept":
        reason = "needs to know what is kept before the update, which rl.correction.mode=bypass decides during it"
        fix = f"set normalise=all{' or mode=decoupled' if decoupled else ''}"
        raise refusal("rl.correction.normalise", "kept", reason, fix)


CORRECTION_CHECKS = (
    correction_that_is_off_asks_nothing,
    correction_that_is_on_does_something,
    correction_bands_hold_1,
    nothing_is_corrected_twice,
    bypass_fits,
)

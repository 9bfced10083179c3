"""Cross-field checks of what keeps entropy up: selection by covariance, and the alarm that raises the clip."""

from megarl.config.names import CLIP_COV_BAND, OBJECTIVE_KEYS
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe


def covariance_band_is_one(recipe: Recipe) -> None:
    """clip_cov draws from a band; where the recipe gives one end, the other is the default."""
    objective = recipe.rl.objective
    if objective.name != "clip_cov":
        return
    low = CLIP_COV_BAND[0] if objective.cov_low is None else objective.cov_low
    high = CLIP_COV_BAND[1] if objective.cov_high is None else objective.cov_high
    if low >= high:
        name, value = ("cov_low", low) if objective.cov_low is not None else ("cov_high", high)
        reason = f"leaves no band to select from: rl.objective.cov_low={low:g} is not below cov_high={high:g}"
        raise refusal(f"rl.objective.{name}", value, reason, "give cov_low below cov_high")


def kl_cov_has_something_to_hold(recipe: Recipe) -> None:
    """Its pull is towards the old policy, which at a step's first update is the policy itself."""
    rl = recipe.rl
    if rl.objective.name == "kl_cov" and rl.updates_per_step == 1 and rl.correction.mode != "bypass":
        reason = "makes rl.objective.name=kl_cov hold nothing: at the only update of a step the policy is the old one"
        raise refusal("rl.updates_per_step", 1, reason, "give at least 2 or take clip_cov")


def clip_can_be_raised(recipe: Recipe) -> None:
    """The alarm raises a clip that the objective has, from a value that the recipe gives to a larger one."""
    objective, entropy = recipe.rl.objective, recipe.rl.entropy
    if entropy.alarm_action != "raise_clip":
        return
    if "clip_high" not in OBJECTIVE_KEYS.get(objective.name, ()):
        reason = f"raises clip_high, which rl.objective.name={objective.name} does not have"
        raise refusal("rl.entropy.alarm_action", entropy.alarm_action, reason, "set warn or stop")
    if objective.clip_high is None:
        reason = "gives rl.entropy.alarm_action=raise_clip nothing to start from"
        raise refusal("rl.objective.clip_high", None, reason, "give a value")
    if entropy.alarm_clip_max is None:
        reason = "sets no bound to rl.entropy.alarm_action=raise_clip"
        raise refusal("rl.entropy.alarm_clip_max", None, reason, "give the largest clip_high")
    if not 0 < objective.clip_high < entropy.alarm_clip_max:
        reason = f"cannot be raised from rl.objective.clip_high={objective.clip_high:g}"
        fix = "give a larger one, and a clip_high above 0"
        raise refusal("rl.entropy.alarm_clip_max", entropy.alarm_clip_max, reason, fix)


ENTROPY_CHECKS = (covariance_band_is_one, kl_cov_has_something_to_hold, clip_can_be_raised)

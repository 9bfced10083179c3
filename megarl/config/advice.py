"""What a valid recipe is warned of: it may be meant, and a key of its own says that it is."""

from megarl.config.check_correction import corrects_for_the_engine
from megarl.config.schema import Recipe


def warnings_of(recipe: Recipe) -> list[str]:
    """One sentence for each choice that is more often a mistake than meant; `megarl config` and the run show them.

    None are given for a phase that is turned off.
    """
    kl = recipe.rl.kl
    found = []
    in_reward = kl.placement == "reward" and kl.coefficient > 0
    if recipe.rl.steps > 0 and in_reward and kl.estimator == "k3" and not kl.allow_k3_in_reward:
        found.append(
            "rl.kl.estimator=k3 with rl.kl.placement=reward has a heavy tail, by which one rare token can outweigh the "
            "rest; take k1, or set rl.kl.allow_k3_in_reward=true."
        )
    mode = recipe.rl.asynchrony.mode
    if recipe.rl.steps > 0 and mode != "sync" and not corrects_for_the_engine(recipe):
        found.append(
            f"rl.asynchrony.mode={mode} trains on responses of older weights, and nothing corrects for that; set "
            "rl.correction.mode=decoupled and rl.correction.weighting=tis, or take rl.objective.name=decoupled_ppo."
        )
    return found

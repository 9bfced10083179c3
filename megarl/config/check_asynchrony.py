"""Cross-field checks of generation beside training."""

from megarl.config.check_correction import corrects_for_the_engine
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe


def an_engine_is_beside_the_trainer(recipe: Recipe) -> None:
    """The embedded engine has no processes of its own, so nothing of it could run beside a step."""
    mode = recipe.rl.asynchrony.mode
    if mode != "sync" and recipe.rollout.engine == "embedded":
        reason = "needs servers, and rollout.engine=embedded generates in the trainer's own processes"
        raise refusal(
            "rl.asynchrony.mode", mode, reason, "set rollout.engine=vllm or sglang, or rl.asynchrony.mode=sync"
        )


def asynchrony_fits_the_step(recipe: Recipe) -> None:
    """Neither greedy baselines nor expert ids come from a stream of requests."""
    mode = recipe.rl.asynchrony.mode
    if mode == "sync":
        return
    if recipe.rl.advantage == "remax":
        reason = f"asks for greedy responses within the step, which rl.asynchrony.mode={mode} leaves no room for"
        raise refusal("rl.advantage", "remax", reason, "set rl.advantage=rloo, or rl.asynchrony.mode=sync")
    if recipe.rl.routing_replay != "none":
        reason = f"would replay the routing of older weights under rl.asynchrony.mode={mode}"
        raise refusal(
            "rl.routing_replay", recipe.rl.routing_replay, reason, "set it to none, or rl.asynchrony.mode=sync"
        )


def spanning_responses_are_treated_as_said(recipe: Recipe) -> None:
    """'correct' has something that corrects, 'keep' nothing, and a cache is kept only of what goes on."""
    asynchrony = recipe.rl.asynchrony
    if asynchrony.mode != "fully_async":
        return
    corrected = corrects_for_the_engine(recipe)
    if asynchrony.spanning == "correct" and not corrected:
        reason = "needs importance weights or rejections, and rl.correction has none"
        fix = "set rl.correction.mode=decoupled and rl.correction.weighting=tis, or rl.asynchrony.spanning=drop"
        raise refusal("rl.asynchrony.spanning", "correct", reason, fix)
    if asynchrony.spanning == "keep" and corrected:
        reason = "leaves spanning responses uncorrected, and the recipe corrects every response"
        raise refusal("rl.asynchrony.spanning", "keep", reason, "set rl.asynchrony.spanning=correct")
    if asynchrony.spanning == "drop" and asynchrony.kv_cache == "keep":
        reason = "is of responses that go on after an update, and rl.asynchrony.spanning=drop begins them anew"
        raise refusal("rl.asynchrony.kv_cache", "keep", reason, "set rl.asynchrony.kv_cache=recompute")


ASYNCHRONY_CHECKS = (
    an_engine_is_beside_the_trainer,
    asynchrony_fits_the_step,
    spanning_responses_are_treated_as_said,
)

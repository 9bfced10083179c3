"""Cross-field checks of the policy loss: what an objective, an advantage and a KL term can be combined to."""

from math import ceil

from megarl.config.names import GROUP_RELATIVE, KNOWN_OBJECTIVES, OBJECTIVE_KEYS
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe

_ALL_KEYS = tuple(dict.fromkeys(name for names in OBJECTIVE_KEYS.values() for name in names))
_COMPARES_GROUPS = (*GROUP_RELATIVE, "reinforce_pp_baseline")


def objective_reads_its_keys(recipe: Recipe) -> None:
    """A key that the objective would ignore is a mistake."""
    objective = recipe.rl.objective
    read = OBJECTIVE_KEYS.get(objective.name, ())
    for name in _ALL_KEYS:
        value = getattr(objective, name)
        if value is not None and name not in read:
            reason = f"is not read by rl.objective.name={objective.name}"
            fix = f"it reads {', '.join(read)}" if read else "it has no such keys; set it to null"
            raise refusal(f"rl.objective.{name}", value, reason, fix)


def constant_is_read(recipe: Recipe) -> None:
    """The constant belongs to one mode."""
    objective = recipe.rl.objective
    if objective.normalisation_constant is not None and objective.normalisation != "seq_mean_token_sum_norm":
        reason = f"is not read with rl.objective.normalisation={objective.normalisation}"
        raise refusal("rl.objective.normalisation_constant", objective.normalisation_constant, reason, "set it to null")


def group_has_a_spread(recipe: Recipe) -> None:
    """Estimators that compare the responses of one prompt need two of them."""
    rl = recipe.rl
    if rl.steps > 0 and rl.advantage in _COMPARES_GROUPS and rl.samples_per_prompt < 2:
        reason = f"gives every response an advantage of 0 with rl.advantage={rl.advantage}"
        raise refusal("rl.samples_per_prompt", rl.samples_per_prompt, reason, "give at least 2")
    if rl.dynamic_sampling.enabled and rl.samples_per_prompt < 2:
        reason = "makes every group uniform, which rl.dynamic_sampling replaces for ever"
        raise refusal("rl.samples_per_prompt", rl.samples_per_prompt, reason, "give at least 2")


def reinforce_updates_once(recipe: Recipe) -> None:
    """Without a ratio nothing notices that the policy has moved since it sampled."""
    if recipe.rl.objective.name == "reinforce" and recipe.rl.updates_per_step > 1:
        reason = "trains several times on one batch, and rl.objective.name=reinforce has no importance ratio for that"
        raise refusal("rl.updates_per_step", recipe.rl.updates_per_step, reason, "give 1 or take ppo")


def kl_gradient_is_meant(recipe: Recipe) -> bool:
    """k1 times the ratio has the reverse KL's gradient, r (x + 1); without it, the user must say so."""
    return recipe.rl.kl.importance_weighted or recipe.rl.kl.allow_k1_in_loss


def kl_belongs_where_it_is(recipe: Recipe) -> None:
    """k1 in a loss is noise: its gradient is grad log policy, whose expectation under the policy is zero."""
    kl = recipe.rl.kl
    if kl.coefficient > 0 and kl.placement == "loss" and kl.estimator == "k1" and not kl_gradient_is_meant(recipe):
        reason = "with rl.kl.placement=loss has a gradient whose expectation is zero: it only adds noise"
        raise refusal("rl.kl.estimator", "k1", reason, "take k2 or k3, or set rl.kl.allow_k1_in_loss=true")


def exact_kl_takes_no_weights(recipe: Recipe) -> None:
    """The exact KL of a position is no sample: it has no token to weigh, and no coefficient to bound."""
    kl = recipe.rl.kl
    if kl.estimator == "full":
        for name, value, unset in (("importance_weighted", kl.importance_weighted, False), ("cap", kl.cap, None)):
            if value != unset:
                reason = "is about the sampled token, which rl.kl.estimator=full does not read"
                raise refusal(f"rl.kl.{name}", value, reason, "drop it or take k2 or k3")


def exact_kl_is_finite(recipe: Recipe) -> None:
    """Where the policy may draw a token that the reference's own truncation leaves out, their KL is infinite."""
    kl, rollout = recipe.rl.kl, recipe.rollout
    if recipe.rl.steps > 0 and kl.estimator == "full" and kl.coefficient > 0:
        for name, value, unset in (("top_p", rollout.top_p, 1.0), ("top_k", rollout.top_k, 0)):
            if value != unset:
                reason = "makes rl.kl.estimator=full infinite where policy and reference leave different tokens"
                raise refusal(f"rollout.{name}", value, reason, f"set {name}={unset:g} or take k2 or k3")


def sampling_leaves_a_choice(recipe: Recipe) -> None:
    """With one token to draw, a group's responses are the same one, and no log-prob has a gradient."""
    if recipe.rl.steps > 0 and recipe.rollout.top_k == 1:
        reason = "leaves RL one token to draw, whose log-prob is 0 whatever the weights"
        raise refusal("rollout.top_k", 1, reason, "give at least 2, or 0 for all tokens")


def coefficient_is_steered_gently(recipe: Recipe) -> None:
    """It moves by a fifth of responses / horizon at most: beyond a factor of e a step it soon leaves every number."""
    rl = recipe.rl
    if rl.kl.target is not None and 5 * rl.kl.horizon < rl.rollouts_per_step:
        reason = (
            f"is below a fifth of the {rl.rollouts_per_step} responses of a step, so that one step could multiply "
            "rl.kl.coefficient by more than e"
        )
        raise refusal("rl.kl.horizon", rl.kl.horizon, reason, f"give at least {ceil(rl.rollouts_per_step / 5)}")


def overlong_fits(recipe: Recipe) -> None:
    """The penalty's buffer is a part of the longest response."""
    buffer, longest = recipe.rl.overlong.buffer_tokens, recipe.rollout.max_new_tokens
    if buffer >= longest:
        reason = f"is not shorter than rollout.max_new_tokens={longest}"
        raise refusal("rl.overlong.buffer_tokens", buffer, reason, f"give at most {longest - 1}")


def registered_objective_has_no_options(recipe: Recipe) -> None:
    """Registered objectives have their own keys and would ignore free options."""
    objective = recipe.rl.objective
    if objective.options and objective.name in KNOWN_OBJECTIVES:
        reason = f"is not read by the registered rl.objective.name={objective.name}"
        fix = "give an objective's dotted path or set rl.objective.options=null"
        raise refusal("rl.objective.options", objective.options, reason, fix)


def max_rl_rewards_stay_positive(recipe: Recipe) -> None:
    """Its baseline is a success rate: nothing may make a reward negative that was not."""
    rl = recipe.rl
    if rl.advantage != "max_rl":
        return
    if rl.overlong.buffer_tokens and rl.overlong.penalty:
        reason = "can make a reward negative, which rl.advantage=max_rl cannot take"
        raise refusal("rl.overlong.buffer_tokens", rl.overlong.buffer_tokens, reason, "set it to 0")
    if rl.kl.placement == "reward" and rl.kl.coefficient > 0:
        reason = "can make a reward negative, which rl.advantage=max_rl cannot take"
        raise refusal("rl.kl.placement", "reward", reason, "set placement=loss")


def critic_has_a_use(recipe: Recipe) -> None:
    """The critic's warm-up leaves steps for the policy."""
    rl = recipe.rl
    if 0 < rl.steps <= rl.critic.warmup_steps:
        reason = f"leaves no step of rl.steps={rl.steps} to the policy"
        raise refusal("rl.critic.warmup_steps", rl.critic.warmup_steps, reason, f"give at most {rl.steps - 1}")


OBJECTIVE_CHECKS = (
    critic_has_a_use,
    max_rl_rewards_stay_positive,
    objective_reads_its_keys,
    constant_is_read,
    registered_objective_has_no_options,
    group_has_a_spread,
    reinforce_updates_once,
    kl_belongs_where_it_is,
    exact_kl_takes_no_weights,
    exact_kl_is_finite,
    sampling_leaves_a_choice,
    coefficient_is_steered_gently,
    overlong_fits,
)

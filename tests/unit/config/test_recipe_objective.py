"""Refusals of policy losses that contradict themselves: each message, whole."""

from collections.abc import Callable

import pytest

from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe
from megarl.config.names import OBJECTIVE_KEYS

Write = Callable[[str, str], str]

# Text under rl: -> the refusal.
CASES = {
    "correction: {mode: bypass, weighting: tis}": (
        "rl.correction.weighting=tis weighs twice: in rl.correction.mode=bypass the objective's own ratio is "
        "policy / engine; set weighting=none or mode=decoupled."
    ),
    "correction: {mode: decoupled, opsm: 0.001}": (
        "rl.correction.opsm=0.001 never drops anything: at the only update of a step the policy is still the old one; "
        "set mode=bypass or rl.updates_per_step above 1."
    ),
    "correction: {mode: decoupled, weighting: tis, normalise: kept}": (
        "rl.correction.normalise=kept has nothing to take out: no rule drops a token before the update; "
        "set normalise=all or a rejection."
    ),
    "{advantage: max_rl, overlong: {buffer_tokens: 4}}": (
        "rl.overlong.buffer_tokens=4 can make a reward negative, which rl.advantage=max_rl cannot take; set it to 0."
    ),
    "{advantage: max_rl, kl: {placement: reward}}": (
        "rl.kl.placement=reward can make a reward negative, which rl.advantage=max_rl cannot take; set placement=loss."
    ),
    "{steps: 10, advantage: gae, critic: {warmup_steps: 8}, optimizer: {warmup_steps: 5}}": (
        "rl.optimizer.warmup_steps=5 leaves no step after the warm-up of the 2 optimizer steps of the phase; "
        "give at most 1."
    ),
    "{steps: 10, advantage: gae, critic: {optimizer: {warmup_steps: 10}}}": (
        "rl.critic.optimizer.warmup_steps=10 leaves no step after the warm-up of the 10 optimizer steps of the phase; "
        "give at most 9."
    ),
    "objective: {tau: 0.1}": (
        "rl.objective.tau=0.1 is not read by rl.objective.name=grpo; it reads clip_low, clip_high, dual_clip."
    ),
    "objective: {name: gspo, dual_clip: 3.0}": (
        "rl.objective.dual_clip=3.0 is not read by rl.objective.name=gspo; it reads clip_low, clip_high."
    ),
    "objective: {name: reinforce, clip_low: 0.2}": (
        "rl.objective.clip_low=0.2 is not read by rl.objective.name=reinforce; it has no such keys; set it to null."
    ),
    "objective: {name: my_package.loss, clip_high: 0.2}": (
        "rl.objective.clip_high=0.2 is not read by rl.objective.name=my_package.loss; it has no such keys; "
        "set it to null."
    ),
    "objective: {normalisation_constant: 64}": (
        "rl.objective.normalisation_constant=64 is not read with rl.objective.normalisation=token_mean; set it to null."
    ),
    "objective: {name: gspo, options: {a: 1}}": (
        'rl.objective.options={"a": 1} is not read by the registered rl.objective.name=gspo; '
        "give an objective's dotted path or set rl.objective.options=null."
    ),
    "{samples_per_prompt: 1, micro_batch_size: 16, advantage: rloo}": (
        "rl.samples_per_prompt=1 gives every response an advantage of 0 with rl.advantage=rloo; give at least 2."
    ),
    "{samples_per_prompt: 1, micro_batch_size: 16, advantage: remax, dynamic_sampling: {enabled: true}}": (
        "rl.samples_per_prompt=1 makes every group uniform, which rl.dynamic_sampling replaces for ever; "
        "give at least 2."
    ),
    "{updates_per_step: 2, objective: {name: reinforce}}": (
        "rl.updates_per_step=2 trains several times on one batch, and rl.objective.name=reinforce has no importance "
        "ratio for that; give 1 or take ppo."
    ),
    "kl: {estimator: k1}": (
        "rl.kl.estimator=k1 with rl.kl.placement=loss has a gradient whose expectation is zero: it only adds noise; "
        "take k2 or k3, or set rl.kl.allow_k1_in_loss=true."
    ),
    "kl: {estimator: full, importance_weighted: true}": (
        "rl.kl.importance_weighted=true is about the sampled token, which rl.kl.estimator=full does not read; "
        "drop it or take k2 or k3."
    ),
    "kl: {estimator: full, cap: 5.0}": (
        "rl.kl.cap=5.0 is about the sampled token, which rl.kl.estimator=full does not read; drop it or take k2 or k3."
    ),
    "{prompts_per_step: 4, samples_per_prompt: 4, micro_batch_size: 16, kl: {target: 0.1, horizon: 3}}": (
        "rl.kl.horizon=3 is below a fifth of the 16 responses of a step, so that one step could multiply "
        "rl.kl.coefficient by more than e; give at least 4."
    ),
    "correction: {weighting: tis}": (
        "rl.correction.weighting=tis does nothing with rl.correction.mode=none; set mode=decoupled."
    ),
    "correction: {reject_token: [0.9, 1.1], weighting: tis}": (
        "rl.correction.reject_token=[0.9, 1.1] does nothing with rl.correction.mode=none; set mode=decoupled."
    ),
    "correction: {veto: 0.0001}": (
        "rl.correction.veto=0.0001 does nothing with rl.correction.mode=none; set mode=decoupled or mode=bypass."
    ),
    "correction: {opsm: 0.0001}": (
        "rl.correction.opsm=0.0001 does nothing with rl.correction.mode=none; set mode=bypass."
    ),
    "correction: {mode: decoupled}": (
        "rl.correction.mode=decoupled asks for a correction and names none; set weighting, a rejection, veto or opsm."
    ),
    "correction: {mode: decoupled, reject_token: [1.1, 0.9]}": (
        "rl.correction.reject_token=[1.1, 0.9] is no band around a ratio of 1; write it like [0.9, 1.1]."
    ),
    "correction: {mode: decoupled, reject_sequence: [0.5]}": (
        "rl.correction.reject_sequence=[0.5] is no band around a ratio of 1; write it like [0.9, 1.1]."
    ),
    "correction: {mode: bypass, reject_geometric: [1.0, 1.001]}": (
        "rl.correction.reject_geometric=[1.0, 1.001] is no band around a ratio of 1; write it like [0.9, 1.1]."
    ),
    "correction: {mode: decoupled, weighting: icepop, low: 1.5}": (
        "rl.correction.low=1.5 is not below 1, so that tokens without any drift weigh 0; give less than 1."
    ),
    "correction: {mode: decoupled, weighting: tis, cap: 0.9}": (
        "rl.correction.cap=0.9 is below 1, so that it shrinks every token's term where there is no drift too; "
        "give at least 1."
    ),
    "{objective: {name: decoupled_ppo}, correction: {mode: decoupled, weighting: tis}}": (
        "rl.correction.weighting=tis corrects a second time what rl.objective.name=decoupled_ppo corrects by its own "
        "ratio to the engine; set weighting=none and mode=none."
    ),
    "{objective: {name: dppo_tv}, correction: {mode: bypass, weighting: icepop}}": (
        "rl.correction.weighting=icepop corrects a second time what rl.objective.name=dppo_tv corrects by its own "
        "ratio to the engine; set weighting=none."
    ),
    "{objective: {name: decoupled_ppo}, correction: {mode: bypass, veto: 0.0001}}": (
        "rl.correction.mode=bypass has no old policy, which rl.objective.name=decoupled_ppo is about; "
        "set mode=decoupled."
    ),
    "correction: {mode: bypass, veto: 0.0001, normalise: kept}": (
        "rl.correction.normalise=kept needs to know what is kept before the update, which rl.correction.mode=bypass "
        "decides during it; set normalise=all or mode=decoupled."
    ),
    "{steps: 3, advantage: gae, critic: {warmup_steps: 3}}": (
        "rl.critic.warmup_steps=3 leaves no step of rl.steps=3 to the policy; give at most 2."
    ),
    "objective: {name: clip_cov, cov_low: 5.0}": (
        "rl.objective.cov_low=5.0 leaves no band to select from: rl.objective.cov_low=5 is not below cov_high=5; "
        "give cov_low below cov_high."
    ),
    "objective: {name: clip_cov, cov_high: 0.5}": (
        "rl.objective.cov_high=0.5 leaves no band to select from: rl.objective.cov_low=1 is not below cov_high=0.5; "
        "give cov_low below cov_high."
    ),
    "objective: {cov_share: 0.1}": (
        "rl.objective.cov_share=0.1 is not read by rl.objective.name=grpo; it reads clip_low, clip_high, dual_clip."
    ),
    "{updates_per_step: 2, objective: {name: kl_cov, clip_high: 0.2}}": (
        "rl.objective.clip_high=0.2 is not read by rl.objective.name=kl_cov; it reads cov_share, beta."
    ),
    "objective: {name: kl_cov}": (
        "rl.updates_per_step=1 makes rl.objective.name=kl_cov hold nothing: at the only update of a step the policy is "
        "the old one; give at least 2 or take clip_cov."
    ),
    "{objective: {name: clip_cov}, correction: {mode: bypass, weighting: tis}}": (
        "rl.correction.weighting=tis weighs twice: in rl.correction.mode=bypass the objective's own ratio is "
        "policy / engine; set weighting=none or mode=decoupled."
    ),
    "entropy: {alarm_share: 0.5, alarm_clip_max: 0.4}": (
        "rl.entropy.alarm_clip_max=0.4 is not read with rl.entropy.alarm_action=warn; "
        "set rl.entropy.alarm_action=raise_clip, or set rl.entropy.alarm_clip_max=null."
    ),
    "{objective: {name: k2_5}, entropy: {alarm_share: 0.5, alarm_action: raise_clip}}": (
        "rl.entropy.alarm_action=raise_clip raises clip_high, which rl.objective.name=k2_5 does not have; "
        "set warn or stop."
    ),
    "{objective: {name: my_package.loss}, entropy: {alarm_share: 0.5, alarm_action: raise_clip}}": (
        "rl.entropy.alarm_action=raise_clip raises clip_high, which rl.objective.name=my_package.loss does not have; "
        "set warn or stop."
    ),
    "{objective: {clip_high: 0.2}, entropy: {alarm_action: raise_clip, alarm_clip_max: 0.4}}": (
        "rl.entropy.alarm_action=raise_clip is not read with rl.entropy.alarm_share=null; "
        "give rl.entropy.alarm_share, or set rl.entropy.alarm_action=warn."
    ),
    "entropy: {alarm_share: 0.5, alarm_action: raise_clip, alarm_clip_max: 0.4}": (
        "rl.objective.clip_high=null gives rl.entropy.alarm_action=raise_clip nothing to start from; give a value."
    ),
    "{objective: {clip_high: 0.2}, entropy: {alarm_share: 0.5, alarm_action: raise_clip}}": (
        "rl.entropy.alarm_clip_max=null sets no bound to rl.entropy.alarm_action=raise_clip; "
        "give the largest clip_high."
    ),
    "{objective: {clip_high: 0.4}, entropy: {alarm_share: 0.5, alarm_action: raise_clip, alarm_clip_max: 0.4}}": (
        "rl.entropy.alarm_clip_max=0.4 cannot be raised from rl.objective.clip_high=0.4; "
        "give a larger one, and a clip_high above 0."
    ),
    "{objective: {clip_high: 0.0}, entropy: {alarm_share: 0.5, alarm_action: raise_clip, alarm_clip_max: 0.4}}": (
        "rl.entropy.alarm_clip_max=0.4 cannot be raised from rl.objective.clip_high=0; "
        "give a larger one, and a clip_high above 0."
    ),
    "overlong: {buffer_tokens: 64}": (
        "rl.overlong.buffer_tokens=64 is not shorter than rollout.max_new_tokens=64; give at most 63."
    ),
}

# Neighbours of refused recipes, which must pass.
ALLOWED = (
    "correction: {mode: bypass}",
    "{objective: {name: reinforce}, correction: {mode: bypass, weighting: tis}}",
    "{objective: {name: my_package.loss}, correction: {mode: bypass, weighting: tis}}",
    "kl: {estimator: k1, importance_weighted: true}",
    "objective: {name: k2_5, tau: 0.1}",
    "objective: {dual_clip: 3.0}",
    "objective: {name: gspo, clip_low: 0.001}",
    "objective: {name: reinforce}",
    "objective: {name: my_package.loss, options: {clip_high: 0.2}}",
    "objective: {normalisation: seq_mean_token_sum_norm, normalisation_constant: 64}",
    "objective: {normalisation: seq_mean_token_sum_norm}",
    "{samples_per_prompt: 1, micro_batch_size: 16, advantage: remax}",
    "{samples_per_prompt: 1, micro_batch_size: 16, advantage: reinforce_pp}",
    "{samples_per_prompt: 2, micro_batch_size: 16, dynamic_sampling: {enabled: true}}",
    "{updates_per_step: 2, objective: {name: ppo}}",
    "kl: {estimator: k2}",
    "kl: {estimator: k1, allow_k1_in_loss: true}",
    "kl: {estimator: k1, coefficient: 0.0}",
    "kl: {estimator: k1, placement: reward}",
    "kl: {importance_weighted: true, cap: 5.0}",
    "kl: {target: 0.1}",
    "{prompts_per_step: 4, samples_per_prompt: 4, micro_batch_size: 16, kl: {target: 0.1, horizon: 4}}",
    "correction: {mode: decoupled, veto: 0.0001, normalise: kept}",
    "correction: {mode: bypass, veto: 0.0001}",
    "correction: {mode: bypass, opsm: 0.0001}",
    "correction: {mode: decoupled, reject_k3: 0.01}",
    "correction: {mode: decoupled, reject_token: [0, 1.1], reject_sequence: [0.5, 2], reject_geometric: [0.99, 1.01]}",
    "correction: {mode: decoupled, weighting: icepop, low: 0.9, high: 1.1}",
    "correction: {mode: decoupled, weighting: tis, cap: 1.0}",
    "{objective: {name: decoupled_ppo}, correction: {mode: decoupled, veto: 0.0001}}",
    "{objective: {name: dppo_tv}, correction: {mode: bypass, reject_token: [0.9, 1.1]}}",
    "{steps: 3, advantage: gae, critic: {warmup_steps: 2}}",
    "{samples_per_prompt: 1, micro_batch_size: 16, advantage: gae}",
    "overlong: {buffer_tokens: 63}",
    "objective: {name: clip_cov, cov_low: 4.9}",
    "objective: {name: clip_cov, cov_low: 0, cov_high: 0.1, cov_share: 1.0}",
    "{updates_per_step: 2, objective: {name: kl_cov}}",
    "{objective: {name: kl_cov}, correction: {mode: bypass}}",
    "{updates_per_step: 2, objective: {name: kl_cov}, correction: {mode: decoupled, weighting: tis}}",
    "{objective: {clip_high: 0.3}, entropy: {alarm_share: 0.5, alarm_action: raise_clip, alarm_clip_max: 0.4}}",
    "{objective: {name: gspo, clip_high: 4.0e-4}, entropy: {alarm_share: 1, alarm_action: raise_clip, "
    "alarm_clip_max: 1.0e-3}}",
)


def under_rl(text: str) -> str:
    """The recipe whose section rl is `text`, a flow mapping or one key of it."""
    return f"rl: {text}" if text.startswith("{") else f"rl: {{{text}}}"


@pytest.mark.parametrize("text", CASES)
def test_contradiction(text: str, write: Write) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write("a.yaml", under_rl(text)))
    assert str(caught.value) == CASES[text]


@pytest.mark.parametrize("text", ALLOWED)
def test_neighbour_of_a_contradiction(text: str, write: Write) -> None:
    load_recipe(write("a.yaml", under_rl(text)))


@pytest.mark.parametrize("name", OBJECTIVE_KEYS)
def test_an_objective_takes_the_keys_that_it_reads(name: str, write: Write) -> None:
    inside = {"dual_clip": 3.0, "ratio_low": 0.8, "ratio_high": 1.2, "cov_high": 0.9}
    given = ", ".join(f"{key}: {inside.get(key, 0.1)}" for key in OBJECTIVE_KEYS[name])
    updates = 2 if name == "kl_cov" else 1
    text = f"rl: {{updates_per_step: {updates}, objective: {{name: {name}, {given}}}}}"
    objective = load_recipe(write("a.yaml", text)).recipe.rl.objective
    assert [getattr(objective, key) for key in OBJECTIVE_KEYS[name]] == [
        inside.get(key, 0.1) for key in OBJECTIVE_KEYS[name]
    ]


@pytest.mark.parametrize("key", ["reject_token", "reject_sequence", "reject_geometric"])
def test_a_band_holds_numbers(key: str, write: Write) -> None:
    for wrong in ("[low, high]", "0.9"):
        with pytest.raises(RecipeError, match=rf"^rl\.correction\.{key}=.* write it like \[0\.9, 1\.1\]\.$"):
            load_recipe(write("a.yaml", f"rl: {{correction: {{mode: decoupled, {key}: {wrong}}}}}"))
    load_recipe(write("a.yaml", f"rl: {{correction: {{mode: decoupled, {key}: [0.9, 1.1]}}}}"))


@pytest.mark.parametrize(
    ("text", "guess"), [("advantage: GRPO", "grpo"), ("objective: {name: PPO}", "ppo"), ("kl: {estimator: K3}", "k3")]
)
def test_a_name_in_capitals_is_recognised(text: str, guess: str, write: Write) -> None:
    with pytest.raises(RecipeError, match=rf"; did you mean {guess}\?$"):
        load_recipe(write("a.yaml", under_rl(text)))

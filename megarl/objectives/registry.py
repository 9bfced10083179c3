"""Objectives by name, and the user's own by dotted path."""

from collections.abc import Callable, Mapping

import torch

from megarl.config.dotted import import_dotted, mismatch
from megarl.config.names import OBJECTIVE_KEYS, is_dotted_path
from megarl.config.objective import ObjectiveConfig
from megarl.config.refusal import refusal
from megarl.objectives.batch import Objective, Selects, TokenBatch, is_token_local
from megarl.objectives.checked import OPTIONAL, CheckedObjective
from megarl.objectives.cispo import CISPO
from megarl.objectives.clip_cov import ClipCov
from megarl.objectives.dapo import DAPO
from megarl.objectives.decoupled_ppo import DecoupledPPO
from megarl.objectives.dppo_tv import DPPOTV
from megarl.objectives.dr_grpo import DrGRPO
from megarl.objectives.grpo import GRPO
from megarl.objectives.gspo import GSPO
from megarl.objectives.k2_5 import K25
from megarl.objectives.kl_cov import KLCov
from megarl.objectives.ppo import PPO
from megarl.objectives.reinforce import Reinforce

OBJECTIVES: Mapping[str, Callable[..., Objective]] = {
    "ppo": PPO,
    "grpo": GRPO,
    "dapo": DAPO,
    "dr_grpo": DrGRPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "k2_5": K25,
    "dppo_tv": DPPOTV,
    "decoupled_ppo": DecoupledPPO,
    "reinforce": Reinforce,
    "clip_cov": ClipCov,
    "kl_cov": KLCov,
}


def build_objective(config: ObjectiveConfig) -> Objective:
    """The objective that the recipe asks for, without KL, entropy and correction.

    A name with a dot is the path of a callable that takes `objective.options` as keywords and returns an objective.

    Raises:
        RecipeError: the name is not registered, or the dotted path does not give an objective.
    """
    if config.name in OBJECTIVES:
        given = {name: getattr(config, name) for name in OBJECTIVE_KEYS[config.name]}
        return OBJECTIVES[config.name](**{name: value for name, value in given.items() if value is not None})
    if not is_dotted_path(config.name):
        reason = "is neither a registered objective nor a dotted path like module.factory"
        raise refusal("rl.objective.name", config.name, reason, f"use one of {', '.join(OBJECTIVES)}")
    factory = import_dotted("rl.objective.name", config.name, "a callable that takes the options as keywords")
    if (complaint := mismatch(factory, **config.options)) is not None:
        reason = f"does not fit {config.name} ({complaint})"
        raise refusal("rl.objective.options", config.options, reason, "give the keywords that it takes")
    objective: Objective = factory(**config.options)
    if not callable(objective) or not isinstance(getattr(objective, "needs", None), frozenset):
        reason = "returns no objective: it must be callable and have a frozenset `needs`"
        raise refusal("rl.objective.name", config.name, reason, "see megarl.objectives.Objective")
    _check_promises(objective, config.name)
    return CheckedObjective(objective, config.name)


def _check_promises(objective: Objective, name: str) -> None:
    """Refuses what an objective says of itself and cannot be."""
    key, protocol = "rl.objective.name", "see megarl.objectives.Objective"
    # what it is called with in a run; nothing is read of it here
    empty = torch.zeros(1, 0)
    if (complaint := mismatch(objective, TokenBatch(empty, empty.bool(), empty))) is not None:
        raise refusal(key, name, f"returns what cannot be called with one TokenBatch ({complaint})", protocol)
    if unknown := sorted(objective.needs.difference(OPTIONAL), key=str):
        reason = f"returns an objective that needs {unknown[0]}, which no batch has"
        raise refusal(key, name, reason, f"name some of {', '.join(OPTIONAL)}")
    if not isinstance(getattr(objective, "token_local", False), bool):
        raise refusal(key, name, "returns an objective whose token_local is neither True nor False", protocol)
    if is_token_local(objective) and "reference_kl_BT" in objective.needs:
        reason = "returns an objective that needs reference_kl_BT, which a token_local one cannot read"
        raise refusal(key, name, reason, "leave token_local out")
    if "selected_BT" in objective.needs and not isinstance(objective, Selects):
        reason = "needs selected_BT and has no method `select` that makes it"
        raise refusal(key, name, reason, "see megarl.objectives.Selects")

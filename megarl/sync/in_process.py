"""Weights to an engine in the same process: gathered over tensor and pipeline ranks, a parameter at a time."""

from megarl.megatron.policy import FrozenModel
from megarl.rollout.engine import Engine


def push_weights(policy: FrozenModel, engine: Engine, version: int) -> None:
    """Gives the engine the policy's weights. Collective; peak extra memory is one parameter, gathered."""
    engine.load_weights(policy.export(), version)

"""The engine that the recipe asks for."""

from megarl.config.schema import Recipe
from megarl.megatron.models import FAMILIES
from megarl.platform.platform import current
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.engine import Engine


def build_engine(recipe: Recipe, vocab_size: int) -> Engine:
    """An engine without weights; `megarl.sync` gives it the trainer's."""
    return EmbeddedEngine(
        FAMILIES[recipe.model.family].hf_config(recipe.model, vocab_size),
        seed=recipe.seed,
        max_batch_size=recipe.rollout.max_batch_size,
        device=current().device,
    )

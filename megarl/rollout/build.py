"""The engine that the recipe asks for."""

import shutil
from collections.abc import Callable
from pathlib import Path

from megarl.config.schema import Recipe
from megarl.megatron.models import FAMILIES
from megarl.platform.platform import current
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.fleet import Fleet
from megarl.rollout.replica import Replica
from megarl.rollout.sglang.replica import SglangReplica
from megarl.rollout.vllm.replica import VllmReplica

_REPLICAS: dict[str, Callable[[Recipe, Path, str | None], Replica]] = {"vllm": VllmReplica, "sglang": SglangReplica}
"""What talks to one server, by `rollout.engine`."""


def build_engine(recipe: Recipe, vocab_size: int) -> EmbeddedEngine:
    """An engine in this process, without weights; `megarl.sync` gives it the trainer's."""
    return EmbeddedEngine(
        FAMILIES[recipe.model.family].hf_config(recipe.model, vocab_size),
        seed=recipe.seed,
        max_batch_size=recipe.rollout.max_batch_size,
        device=current().device,
    )


def build_fleet(recipe: Recipe, vocab_size: int, note: Callable[[str], None]) -> Fleet:
    """The recipe's servers, which start in the background. For the main rank alone.

    Args:
        recipe: says how many, or where they are.
        vocab_size: tokens.
        note: is told what a user should know.
    """
    folder = Path(recipe.output_dir) / "engine"
    config = FAMILIES[recipe.model.family].hf_config(recipe.model, vocab_size)
    replica = _REPLICAS[recipe.rollout.engine]
    replicas: list[Replica] = []
    if recipe.engine.urls:
        replicas = [replica(recipe, folder, url) for url in recipe.engine.urls]
    else:
        for number in range(recipe.engine.replicas):
            own = folder / str(number)
            shutil.rmtree(own, ignore_errors=True)
            config.save_pretrained(own)
            replicas.append(replica(recipe, own, None))
    return Fleet(
        replicas,
        max_concurrent=recipe.engine.max_concurrent,
        restarts=recipe.engine.restarts,
        watch_every_s=recipe.engine.health_timeout_s,
        note=note,
    )

"""The engine that the recipe asks for."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.megatron.models import FAMILIES
from megarl.megatron.precision import DTYPES
from megarl.megatron.rope import rotary_of
from megarl.platform.platform import current
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.fleet import Fleet
from megarl.rollout.int8_config import HF_QUANTIZATION
from megarl.rollout.invariant_model import Invariance
from megarl.rollout.replica import Replica
from megarl.rollout.sglang.command import check_head
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
        invariance=_invariance(recipe) if recipe.precision.batch_invariant else None,
    )


def _invariance(recipe: Recipe) -> Invariance:
    precision = recipe.precision
    return Invariance(
        rotary_of(recipe.model, current().device),
        DTYPES[precision.dtype],
        precision.fp32_head,
        precision.fp32_residual,
    )


def check_engine_here(recipe: Recipe) -> None:
    """The engine that the run is to start is installed, and can do here what the recipe asks for.

    Raises:
        RecipeError: it is not, or cannot.
    """
    engine = recipe.engine
    if recipe.rollout.engine == "embedded" or engine.urls:
        return
    if engine.python is None and importlib.util.find_spec(recipe.rollout.engine) is None:
        reason = "is a package that this environment lacks"
        fix = "install it as docs/engines.md says, or name an interpreter that has it in engine.python"
        raise refusal("rollout.engine", recipe.rollout.engine, reason, fix)
    if engine.python is not None and shutil.which(engine.python) is None:
        raise refusal("engine.python", engine.python, "is no program", "name the interpreter of an environment")
    if recipe.rollout.engine == "sglang" and current().name == "cpu":
        check_head(recipe)
    if current().name == "cpu" and engine.quantization not in _ON_CPU:
        reason = "has no kernel for a CPU in vLLM"
        raise refusal("engine.quantization", engine.quantization, reason, f"use one of {', '.join(_ON_CPU)}")


_ON_CPU = ("none", "fp8_per_channel", "int8")


def build_fleet(
    recipe: Recipe, vocab_size: int, note: Callable[[str], None], is_stopped: Callable[[], bool] = lambda: False
) -> Fleet:
    """The recipe's servers, which start in the background. For the main rank alone.

    Args:
        recipe: says how many, or where they are.
        vocab_size: tokens.
        note: is told what a user should know.
        is_stopped: whether the run was told to stop.
    """
    folder = Path(recipe.output_dir) / "engine"
    config = FAMILIES[recipe.model.family].hf_config(recipe.model, vocab_size)
    if recipe.engine.quantization == "int8":
        config.quantization_config = HF_QUANTIZATION
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
        is_stopped=is_stopped,
    )

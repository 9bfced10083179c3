"""The command line and the environment of an SGLang server."""

import sys
from collections.abc import Mapping
from pathlib import Path

from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.platform.platform import current
from megarl.rollout.server_environment import common_environment, engine_dtype

LOADER = "megarl.sync.sglang_loader.load_bucket"
"""What SGLang calls for a bucket, as --custom-weight-loader names it."""


def server_command(recipe: Recipe, model: Path, port: int, host: str = "127.0.0.1") -> list[str]:
    """Arguments of a server.

    Args:
        recipe: says how.
        model: folder with the model's config.json. Weights come from the trainer, so none are read.
        port: where it listens.
        host: the interface: the loopback one, unless `megarl serve` opens it to other machines.
    """
    engine = recipe.engine
    command = [
        engine.python or sys.executable,
        # -P: the working folder may hold another thing called megarl
        *("-P", "-m", "megarl.rollout.sglang.serve"),
        *("--model-path", str(model), "--served-model-name", "policy", "--load-format", "dummy"),
        *("--skip-tokenizer-init", "--grammar-backend", "none"),
        *("--host", host, "--port", str(port)),
        *("--dtype", engine_dtype(recipe), "--context-length", str(recipe.model.max_position_embeddings)),
        *("--max-running-requests", str(engine.max_concurrent), "--tp-size", str(engine.tensor)),
        *("--random-seed", str(recipe.seed)),
        *("--custom-weight-loader", LOADER),
        # one word, as argparse takes a -1 of its own for an option
        "--weight-version=-1",
        # the model's own generation_config.json may set sampling defaults; the recipe's are sent with each request
        *("--sampling-defaults", "openai"),
        # its warm-up requests come without the token
        "--skip-server-warmup",
        *("--log-level-http", "warning"),
    ]
    if recipe.model.moe.num_experts:
        command += ["--enable-return-routed-experts"]
    if current().name == "cpu":
        command += ["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
        command += ["--disable-cuda-graph", "--disable-overlap-schedule"]
    else:
        # makes sampling a function of each request's own seed; it needs kernels that only GPUs have
        command += ["--enable-deterministic-inference"]
    gib = 1.0 if engine.kv_cache_gib is None and current().name == "cpu" else engine.kv_cache_gib
    if gib is not None:
        command += ["--max-total-tokens", str(cached_tokens(recipe, gib))]
    return [*command, *engine.arguments]


def check_head(recipe: Recipe) -> None:
    """On a CPU SGLang's Qwen2 computes with heads of hidden_size / num_attention_heads, whatever config.json says.

    Raises:
        RecipeError: the model's are others.
    """
    model = recipe.model
    if model.family == "qwen2" and model.head_dim * model.num_attention_heads != model.hidden_size:
        reason = "is not model.hidden_size / model.num_attention_heads, which SGLang takes for it on a CPU"
        raise refusal("model.head_dim", model.head_dim, reason, "make them agree, or use another rollout.engine")


def cached_tokens(recipe: Recipe, gib: float) -> int:
    """Tokens whose keys and values fit into so much memory; at least one context, without which nothing is served."""
    model = recipe.model
    width = 4 if engine_dtype(recipe) == "float32" else 2
    nbytes = 2 * model.num_layers * model.num_query_groups * model.head_dim * width
    return max(int(gib * 2**30) // nbytes, model.max_position_embeddings)


def server_environment(inherited: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment of a server: see `common_environment`."""
    environment = common_environment(inherited, token)
    if current().name == "cpu":
        environment |= {"SGLANG_USE_CPU_ENGINE": "1"}
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment

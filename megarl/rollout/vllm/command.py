"""The command line and the environment of a vLLM server."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from megarl.config.schema import Recipe
from megarl.platform.platform import current
from megarl.rollout.server_environment import common_environment, engine_dtype


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
        *("-P", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", "policy", "--load-format", "dummy", "--skip-tokenizer-init"),
        *("--host", host, "--port", str(port)),
        *("--dtype", engine_dtype(recipe), "--max-model-len", str(recipe.model.max_position_embeddings)),
        *("--max-num-seqs", str(engine.max_concurrent), "--tensor-parallel-size", str(engine.tensor)),
        *("--seed", str(recipe.seed)),
        # every path asks for the token, the endpoints that vLLM itself leaves open included
        *("--middleware", "megarl.rollout.guard.RequireToken"),
        # tokens in, tokens out, with the weights' version of each
        "--enable-scale-out",
        # of the distribution that tokens are drawn from: after the temperature, top-k and top-p
        *("--logprobs-mode", "processed_logprobs"),
        # the model's own generation_config.json may set sampling defaults; the recipe's are sent with each request
        *("--generation-config", "vllm"),
        *("--worker-extension-cls", "megarl.sync.vllm_worker.WorkerExtension"),
        *("--weight-transfer-config", json.dumps({"backend": "megarl"})),
        "--disable-uvicorn-access-log",
    ]
    # for int8 the model's config.json says it
    if engine.quantization not in ("none", "int8"):
        command += ["--quantization", engine.quantization]
    if current().name == "cpu":
        command += ["--enforce-eager", "--block-size", "32"]
    gib = 1.0 if engine.kv_cache_gib is None and current().name == "cpu" else engine.kv_cache_gib
    if gib is not None:
        command += ["--kv-cache-memory-bytes", str(int(gib * 2**30))]
    return [*command, *engine.arguments]


def server_environment(inherited: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment of a server: see `common_environment`."""
    environment = common_environment(inherited, token) | {
        # the endpoints for weights, pausing and caches
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if current().name == "cpu":
        # by itself each server binds its threads to the machine's first cores, and replicas and trainer to the same
        environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment

"""Cross-field checks of the engine's servers and of the way to them."""

import ipaddress
import os
from urllib.parse import SplitResult, urlsplit

from megarl.config.refusal import refusal
from megarl.config.schema import Recipe

_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 192, 256)
"""Those of vLLM's attention kernels; another one fails at the first request, not before."""


def urls_are_servers(recipe: Recipe) -> None:
    """Each URL is of a server, on this machine unless remote ones are allowed, which then need a token."""
    for url in recipe.engine.urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise refusal("engine.urls", url, "is no server's address", "write it as http://127.0.0.1:8000")
        if parts.username is not None or parts.password is not None:
            reason = "holds a password, which logs and dumps of the recipe would show"
            raise refusal(
                "engine.urls", _without_password(parts), reason, f"set {recipe.engine.token_variable} instead"
            )
        if _is_loopback(parts.hostname):
            continue
        if not recipe.engine.allow_remote:
            reason = "is on another machine, whose servers anybody on the network may reach"
            raise refusal("engine.urls", url, reason, "set engine.allow_remote=true, or use a server on 127.0.0.1")
        if not os.environ.get(recipe.engine.token_variable):
            reason = f"is on another machine and the environment has no {recipe.engine.token_variable}"
            raise refusal("engine.urls", url, reason, "set that variable to the server's token")


def arguments_leave_the_recipe_its_own(recipe: Recipe) -> None:
    """What the recipe or megarl decides is not set a second time, least of all where a server listens."""
    for argument in recipe.engine.arguments:
        name = argument.split("=")[0]
        if name in _OWNED:
            raise refusal("engine.arguments", argument, f"sets what {_OWNED[name]} sets", "leave it out")


def shared_memory_is_here(recipe: Recipe) -> None:
    """Memory of this machine reaches no other."""
    remote = [url for url in recipe.engine.urls if not _is_loopback(urlsplit(url).hostname or "")]
    if remote and recipe.sync.transport == "shared_memory":
        reason = f"reaches no server on another machine, such as {remote[0]}"
        raise refusal("sync.transport", "shared_memory", reason, "set sync.transport=disk")


def own_servers_are_described(recipe: Recipe) -> None:
    """Keys of servers that the run starts are not given for servers that run already."""
    engine, plain = recipe.engine, type(recipe.engine)()
    if engine.urls:
        for name in ("replicas", "tensor", "kv_cache_gib", "python", "arguments"):
            value = getattr(engine, name)
            if value != getattr(plain, name):
                reason = "is of servers that the run starts, and engine.urls names running ones"
                raise refusal(f"engine.{name}", value, reason, "leave it out, or leave out engine.urls")


def vllm_can_serve(recipe: Recipe) -> None:
    """vLLM has attention kernels for the model's head size."""
    if recipe.rollout.engine == "vllm" and recipe.model.head_dim not in _HEAD_SIZES:
        reason = f"has no attention kernel in vLLM, which serves {', '.join(map(str, _HEAD_SIZES))}"
        raise refusal("model.head_dim", recipe.model.head_dim, reason, "use one of these, or rollout.engine=embedded")


_OWNED = {
    "--host": "megarl, which keeps servers on the loopback interface,",
    "--port": "megarl",
    "--model": "model",
    "--dtype": "engine.dtype",
    "--tensor-parallel-size": "engine.tensor",
    "-tp": "engine.tensor",
    "--max-model-len": "model.max_position_embeddings",
    "--max-num-seqs": "engine.max_concurrent",
    "--kv-cache-memory-bytes": "engine.kv_cache_gib",
    "--logprobs-mode": "megarl",
    "--api-key": "megarl",
    "--middleware": "megarl",
    "--worker-extension-cls": "megarl",
    "--weight-transfer-config": "sync",
    "--seed": "seed",
    "--model-path": "model",
    "--context-length": "model.max_position_embeddings",
    "--max-running-requests": "engine.max_concurrent",
    "--max-total-tokens": "engine.kv_cache_gib",
    "--tp": "engine.tensor",
    "--tp-size": "engine.tensor",
    "--custom-weight-loader": "megarl",
    "--weight-version": "megarl",
    "--admin-api-key": "megarl",
    "--config": "megarl",
    "--random-seed": "seed",
}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_password(parts: SplitResult) -> str:
    return f"{parts.scheme}://...@{parts.hostname}"


ENGINE_CHECKS = (
    urls_are_servers,
    arguments_leave_the_recipe_its_own,
    shared_memory_is_here,
    own_servers_are_described,
    vllm_can_serve,
)

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
        parts = _address(url)
        if parts is None:
            raise refusal("engine.urls", url, "is no server's address", "write it as http://127.0.0.1:8000")
        if parts.username is not None or parts.password is not None:
            reason = "holds a password, which logs and dumps of the recipe would show"
            raise refusal(
                "engine.urls", _without_password(parts), reason, f"set {recipe.engine.token_variable} instead"
            )
        if is_loopback(parts.hostname or ""):
            continue
        if not recipe.engine.allow_remote:
            reason = "is on another machine, whose servers anybody on the network may reach"
            raise refusal("engine.urls", url, reason, "set engine.allow_remote=true, or use a server on 127.0.0.1")
        if not os.environ.get(recipe.engine.token_variable):
            reason = f"is on another machine and the environment has no {recipe.engine.token_variable}"
            raise refusal("engine.urls", url, reason, "set that variable to the server's token")


def _address(url: str) -> SplitResult | None:
    """The parts of a server's URL; None where it is none, such as with half a bracket or a port above 65535."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and parts.path in ("", "/") and parts.port != 0
    except ValueError:
        return None
    return parts if is_one and parts.hostname else None


def arguments_leave_the_recipe_its_own(recipe: Recipe) -> None:
    """What the recipe or megarl decides is not set a second time, least of all where a server listens."""
    for argument in recipe.engine.arguments:
        # vLLM takes underscores for dashes, and the beginning of an option's name for the name
        name = argument.split("=")[0].replace("_", "-")
        owned = [own for own in _OWNED if own == name or (len(name) > 2 and name[:2] == "--" and own.startswith(name))]
        if owned:
            raise refusal("engine.arguments", argument, f"sets what {_OWNED[owned[0]]} sets", "leave it out")


def memory_is_here(recipe: Recipe) -> None:
    """Memory of this machine, or of its GPUs, reaches no other."""
    remote = [url for url in recipe.engine.urls if not is_loopback(urlsplit(url).hostname or "")]
    if remote and recipe.sync.transport in ("shared_memory", "cuda_ipc"):
        reason = f"reaches no server on another machine, such as {remote[0]}"
        raise refusal("sync.transport", recipe.sync.transport, reason, "set sync.transport to broadcast or disk")


def own_servers_are_described(recipe: Recipe) -> None:
    """Keys of servers that the run starts are not given for servers that run already."""
    engine, plain = recipe.engine, type(recipe.engine)()
    if engine.urls:
        for name in ("replicas", "tensor", "quantization", "kv_cache_gib", "python", "arguments"):
            value = getattr(engine, name)
            if value != getattr(plain, name):
                reason = "is of servers that the run starts, and engine.urls names running ones"
                raise refusal(f"engine.{name}", value, reason, "leave it out, or leave out engine.urls")


def quantisation_starts_from_16_bits(recipe: Recipe) -> None:
    """vLLM quantises what it holds in bf16 or fp16, and refuses fp32."""
    is_fp32 = recipe.engine.dtype_beside(recipe.precision.dtype) == "fp32"
    if recipe.engine.quantization != "none" and is_fp32:
        reason = "starts from 16 bits, and the servers compute in fp32"
        raise refusal("engine.quantization", recipe.engine.quantization, reason, "set engine.dtype=bf16")


def vllm_can_serve(recipe: Recipe) -> None:
    """vLLM has attention kernels for the model's head size."""
    if recipe.rollout.engine == "vllm" and recipe.model.head_dim not in _HEAD_SIZES:
        reason = f"has no attention kernel in vLLM, which serves {', '.join(map(str, _HEAD_SIZES))}"
        raise refusal("model.head_dim", recipe.model.head_dim, reason, "use one of these, or rollout.engine=embedded")


def sglang_can_serve(recipe: Recipe) -> None:
    """SGLang's log-probs are of the whole vocabulary, whatever it samples from, and it quantises nothing here."""
    if recipe.rollout.engine != "sglang":
        return
    for name, whole in (("top_p", 1.0), ("top_k", 0)):
        value = getattr(recipe.rollout, name)
        if value != whole:
            reason = "truncates what is sampled from, and SGLang gives log-probs of the distribution before that"
            raise refusal(f"rollout.{name}", value, reason, f"set {whole:g}, or use rollout.engine=vllm or embedded")
    if recipe.engine.quantization != "none":
        reason = "is of rollout.engine=vllm"
        raise refusal("engine.quantization", recipe.engine.quantization, reason, "leave it out, or use vLLM")


_OWNED = {
    "--host": "megarl, which keeps servers on the loopback interface,",
    "--port": "megarl",
    "--uds": "megarl",
    "--config": "the recipe",
    "--model": "model",
    "--dtype": "engine.dtype",
    "--tensor-parallel-size": "engine.tensor",
    "-tp": "engine.tensor",
    "--max-model-len": "model.max_position_embeddings",
    "--max-num-seqs": "engine.max_concurrent",
    "--kv-cache-memory-bytes": "engine.kv_cache_gib",
    "--quantization": "engine.quantization",
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
    "--random-seed": "seed",
    "-q": "engine.quantization",
    **dict.fromkeys(
        (
            "--dist-init-addr",
            "--disaggregation-bootstrap-port",
            "--enable-http2",
            "--encoder-bootstrap-port",
            "--encoder-only",
            "--engine-info-bootstrap-port",
            "--grpc-http-sidecar-port",
            "--grpc-mode",
            "--grpc-port",
            "--kv-events-config",
            "--nccl-init-addr",
            "--sidecar",
            "--smg-grpc-mode",
            "--smg-http-sidecar-port",
            "--tokenizer-worker-num",
            "--use-ray",
        ),
        "megarl, whose guard stands at one door alone,",
    ),
}
"""Arguments, and what decides them. The last ones open another door, or start the first one without the guard."""


def is_loopback(host: str) -> bool:
    """Whether a URL's host is this machine's loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_password(parts: SplitResult) -> str:
    return f"{parts.scheme}://...@{parts.hostname}"


ENGINE_CHECKS = (
    urls_are_servers,
    arguments_leave_the_recipe_its_own,
    memory_is_here,
    own_servers_are_described,
    quantisation_starts_from_16_bits,
    vllm_can_serve,
    sglang_can_serve,
)

"""What is refused of an engine's servers, before anything is started."""

import json

import pytest

from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe

RECIPE = "recipes/demo/grpo_arithmetic.yaml"
REFUSED = {
    "engine.urls=[http://10.1.2.3:8000]": "is on another machine, whose servers anybody on the network may reach",
    "engine.urls=[http://0.0.0.0:8000]": "is on another machine",
    "engine.urls=[ftp://127.0.0.1]": "is no server's address",
    "engine.urls=[http://127.0.0.1:8000/v1]": "is no server's address",
    "engine.urls=[http://me:secret@127.0.0.1:8000]": "holds a password",
    "engine.arguments=[--host=0.0.0.0]": "sets what megarl, which keeps servers on the loopback interface, sets",
    "engine.arguments=[--hos, 0.0.0.0]": "sets what megarl, which keeps servers on the loopback interface, sets",
    "engine.arguments=[--config, server.yaml]": "sets what the recipe sets",
    "engine.arguments=[--uds, /tmp/socket]": "sets what megarl sets",
    "engine.arguments=[--api-key, x]": "sets what megarl sets",
    "engine.arguments=[--api_key, x]": "sets what megarl sets",
    "engine.arguments=[--dtype=bfloat16]": "sets what engine.dtype sets",
    "engine.arguments=[-q, fp8]": "sets what engine.quantization sets",
    "engine.arguments=[--grpc-port=50051]": "sets what megarl, whose guard stands at one door alone, sets",
    "engine.quantization=fp8_per_channel": "starts from 16 bits",
    "model.head_dim=16": "has no attention kernel in vLLM",
}


def loaded(*overrides: str) -> None:
    load_recipe(RECIPE, ["rollout.engine=vllm", *overrides])


@pytest.mark.parametrize("override", REFUSED)
def test_refused(override: str) -> None:
    with pytest.raises(RecipeError, match=REFUSED[override]) as refused:
        loaded(override)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "argument",
    [
        *("--host=0.0.0.0", "--hos=0.0.0.0", "--port=1", "--config=server.yaml", "--api-key=x", "--admin-api-key=x"),
        *("--tokenizer-worker-num=2", "--tokenizer-w=2", "--smg-grpc-mode", "--grpc-mode", "--grpc-port=50051"),
        *("--enable-http2", "--encoder-only", "--use-ray", "--sidecar=x", "--kv-events-config={}"),
        *("--custom-weight-loader=x", "--weight-version=3", "--nccl-init-addr=0.0.0.0:1", "--dist-init-addr=0.0.0.0:1"),
    ],
)
def test_no_argument_takes_the_guard_from_sglang(argument: str) -> None:
    with pytest.raises(RecipeError, match=r"^engine\.arguments="):
        load_recipe(RECIPE, ["rollout.engine=sglang", f"engine.arguments={json.dumps([argument])}"])


def test_a_remote_server_needs_permission_and_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = ["engine.urls=[http://10.1.2.3:8000]", "engine.allow_remote=true", "sync.transport=disk"]
    monkeypatch.delenv("MEGARL_ENGINE_TOKEN", raising=False)
    with pytest.raises(RecipeError, match="the environment has no MEGARL_ENGINE_TOKEN"):
        loaded(*remote)
    monkeypatch.setenv("MEGARL_ENGINE_TOKEN", "t")
    loaded(*remote)
    with pytest.raises(RecipeError, match="reaches no server on another machine"):
        loaded(*remote[:2])


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000", "https://127.1.2.3"]
)
def test_loopback_needs_neither(url: str) -> None:
    loaded(f"engine.urls={json.dumps([url])}")


def test_keys_of_own_servers_beside_urls() -> None:
    with pytest.raises(RecipeError, match=r"engine\.replicas=2 is of servers that the run starts"):
        loaded("engine.urls=[http://127.0.0.1:8000]", "engine.replicas=2")

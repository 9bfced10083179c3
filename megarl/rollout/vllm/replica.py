"""One vLLM server behind the endpoints of its reinforcement-learning API."""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError
from megarl.rollout.replica import ServerUnreachableError
from megarl.rollout.server_process import ServerProcess, free_port
from megarl.rollout.types import Completion, Request, SamplingParams
from megarl.rollout.vllm.client import Client
from megarl.rollout.vllm.command import engine_dtype, server_command, server_environment
from megarl.rollout.vllm.wire import from_json, to_json

_POLL_S = 0.5


class VllmReplica:
    """Implements `megarl.rollout.replica.Replica`."""

    def __init__(self, recipe: Recipe, folder: Path, url: str | None = None) -> None:
        """Args: recipe: says how. folder: for config.json, which is there, and the log. url: of a running server."""
        self._recipe, self._folder, self._own = recipe, folder, url is None
        self._process: ServerProcess | None = None
        self._opened = False
        self._version = "none"
        self.url = url or "a vLLM server"
        if url is not None:
            self._connect(url, os.environ.get(recipe.engine.token_variable, ""))

    def start(self) -> None:
        """See `Replica`."""
        self._opened = False
        if not self._own:
            return
        port, token = free_port(), secrets.token_urlsafe(32)
        self._process = ServerProcess(
            server_command(self._recipe, self._folder, port),
            server_environment(os.environ, token),
            self._folder / "server.log",
        )
        self._connect(f"http://127.0.0.1:{port}", token)

    def wait_until_ready(self) -> None:
        """See `Replica`."""
        deadline = time.monotonic() + self._recipe.engine.start_timeout_s
        while not self._client.up():
            if self._process is not None and self._process.exit_code is not None:
                raise self._process.failure()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self.url} did not come up within engine.start_timeout_s={self._recipe.engine.start_timeout_s:g}"
                )
            time.sleep(_POLL_S)
        self._check_settings()

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        """See `Replica`."""
        # where old keys and values outlive an update, none of them may serve a request that begins after it
        salt = self._version if self._recipe.rl.asynchrony.keeps_cache else None
        body = to_json(request, sampling, self._recipe.seed, self._recipe.model.max_position_embeddings, salt)
        return from_json(request, self._client.post("/inference/v1/generate", body))

    def responsive(self) -> bool:
        """See `Replica`."""
        if self._process is not None and self._process.exit_code is not None:
            return False
        try:
            # the front asks the engine's core for it
            self._client.get("/is_paused")
        except (ServerUnreachableError, EngineError):
            return False
        return True

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        """See `Replica`."""
        asynchrony = self._recipe.rl.asynchrony
        if asynchrony.keeps_cache:
            self._client.post("/pause?mode=keep&clear_cache=false")
        else:
            # what goes on after it is read anew by the new weights
            self._client.post(f"/pause?mode={'keep' if asynchrony.goes_on else 'abort'}")
        if not self._opened:
            self._client.post("/init_weight_transfer_engine", {"init_info": dict(transport)})
            self._opened = True
        self._client.post("/start_weight_update")

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None) -> None:
        """See `Replica`."""
        self._client.post("/update_weights", {"update_info": {"where": bucket, "digests_of": digests_of}})

    def received_digests(self) -> list[dict[str, str]]:
        """See `Replica`."""
        workers: list[dict[str, str]] = self._rpc("megarl_digests")
        return workers

    def left_out(self) -> list[str]:
        """See `Replica`."""
        return [name for names in self._rpc("megarl_left_out") for name in names]

    def finish_update(self, version: int) -> None:
        """See `Replica`."""
        self._client.post("/finish_weight_update", {"weight_version": str(version)})
        if not self._recipe.rl.asynchrony.keeps_cache:
            # keys and values of the old weights
            self._client.post("/reset_prefix_cache")
        self._version = str(version)
        self._client.post("/resume")

    def abort(self) -> None:
        """See `Replica`."""
        soon = self._recipe.engine.health_timeout_s
        self._client.post("/pause?mode=abort&clear_cache=false", timeout_s=soon)
        self._client.post("/resume", timeout_s=soon)

    def end(self) -> None:
        """See `Replica`."""
        if self._process is not None:
            self._process.end()
            self._client.close()

    def _connect(self, url: str, token: str) -> None:
        engine = self._recipe.engine
        self.url = url
        self._client = Client(
            url,
            token,
            connections=engine.max_concurrent,
            timeout_s=engine.request_timeout_s,
            health_timeout_s=engine.health_timeout_s,
        )

    def _rpc(self, method: str) -> Any:
        return self._client.post("/collective_rpc", {"method": method})["results"]

    def _check_settings(self) -> None:
        """What the recipe says about sampling and precision is what the server says that it uses.

        Raises:
            EngineError: it is not.
        """
        says = self._client.get("/server_info?config_format=json")["vllm_config"]
        wanted = {
            "logprobs_mode": "processed_logprobs",
            "dtype": f"torch.{engine_dtype(self._recipe)}",
            "max_model_len": self._recipe.model.max_position_embeddings,
        }
        for name, value in wanted.items():
            given = says["model_config"][name]
            if given != value and given != str(value).removeprefix("torch."):
                raise EngineError(f"{self.url} runs with {name}={given}, and the recipe needs {value}")

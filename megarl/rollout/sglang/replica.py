"""One SGLang server behind its own endpoints for reinforcement learning."""

import contextlib
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError
from megarl.rollout.http_client import Client
from megarl.rollout.replica import ServerUnreachableError
from megarl.rollout.server_process import ServerProcess, free_port
from megarl.rollout.sglang.command import server_command, server_environment
from megarl.rollout.sglang.settings import check_settings
from megarl.rollout.sglang.update import Update
from megarl.rollout.sglang.wire import from_json, to_json
from megarl.rollout.types import Completion, Request, SamplingParams

_POLL_S = 0.5


class SglangReplica:
    """Implements `megarl.rollout.replica.Replica`."""

    def __init__(self, recipe: Recipe, folder: Path, url: str | None = None) -> None:
        """Args: recipe: says how. folder: for config.json, which is there, and the log. url: of a running server."""
        self._recipe, self._folder, self._own = recipe, folder, url is None
        self._process: ServerProcess | None = None
        self.url = url or "an SGLang server"
        self._client: Client | None = None
        if url is not None:
            self._connect(url, os.environ.get(recipe.engine.token_variable, ""))

    def start(self) -> None:
        """See `Replica`."""
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
        while not self.responsive():
            if self._process is not None and self._process.exit_code is not None:
                raise self._process.failure()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self.url} did not come up within engine.start_timeout_s={self._recipe.engine.start_timeout_s:g}"
                )
            time.sleep(_POLL_S)
        if not self._own:
            # a trainer that died in an update leaves its server paused
            self._release()
        check_settings(self._http.get("/server_info"), self._recipe, self.url)

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        """See `Replica`."""
        body = to_json(request, sampling, self._recipe.seed, self._recipe.model.max_position_embeddings)
        return from_json(request, sampling, self._http.post("/generate", body), self._recipe)

    def responsive(self) -> bool:
        """See `Replica`."""
        if self._process is not None and self._process.exit_code is not None:
            return False
        try:
            # the front asks the scheduler for a part of it
            self._http.get("/server_info")
        except (ServerUnreachableError, EngineError):
            return False
        return True

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        """See `Replica`. Requests that are being worked on are put back, and go on with the new weights."""
        self._update = Update(self._http, self._recipe, self._folder, str(transport["transport"]))
        self._http.post("/pause_generation", {"mode": "retract"})
        self._http.post("/begin_weight_update", {})

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None) -> None:
        """See `Replica`."""
        self._update.receive(bucket, digests_of)

    def received_digests(self) -> list[dict[str, str]]:
        """See `Replica`."""
        return self._update.digests

    def left_out(self) -> list[str]:
        """See `Replica`."""
        return self._update.left_out

    def finish_update(self, version: int) -> None:
        """See `Replica`."""
        self._update.finish(version)
        self._http.post("/end_weight_update", {})
        self._http.post("/continue_generation", {})

    def end(self) -> None:
        """See `Replica`. A server of somebody else's is not left paused."""
        if self._client is None:
            return
        if self._process is not None:
            self._process.end()
        else:
            self._release()
        self._client.close()

    def _release(self) -> None:
        """Ends an update that nobody will finish, and lets the server go on; its version, -1, says what it holds."""
        with contextlib.suppress(ServerUnreachableError, EngineError):
            self._http.post("/end_weight_update", {}, self._recipe.engine.health_timeout_s)
        with contextlib.suppress(ServerUnreachableError, EngineError):
            self._http.post("/continue_generation", {}, self._recipe.engine.health_timeout_s)

    @property
    def _http(self) -> Client:
        if self._client is None:
            raise RuntimeError("the server was not started")
        return self._client

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

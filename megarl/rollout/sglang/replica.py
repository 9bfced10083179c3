"""One SGLang server behind its own endpoints for reinforcement learning."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError
from megarl.rollout.http_client import release_in
from megarl.rollout.replica import ServerUnreachableError
from megarl.rollout.server import Server
from megarl.rollout.sglang import command
from megarl.rollout.sglang.settings import check_settings
from megarl.rollout.sglang.update import Update
from megarl.rollout.sglang.wire import from_json, to_json
from megarl.rollout.types import Completion, Request, SamplingParams


class SglangReplica:
    """Implements `megarl.rollout.replica.Replica`."""

    def __init__(self, recipe: Recipe, folder: Path, url: str | None = None) -> None:
        """Args: recipe: says how. folder: for config.json, which is there, and the log. url: of a running server."""
        self._recipe, self._folder = recipe, folder
        self._server = Server(recipe, folder, url, "SGLang", command)
        # one that was running may be in an update that a trainer which died has left
        self._paused = url is not None
        self._version, self.release = "none", ""

    @property
    def url(self) -> str:
        """See `Replica`."""
        return self._server.url

    def start(self) -> None:
        """See `Replica`."""
        self._paused = not self._server.is_own
        self._server.start()

    def wait_until_ready(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """See `Replica`."""
        # the front asks the scheduler for a part of it
        self._server.wait_until(lambda: self._server.http.up("/server_info"), give_up)
        if self._paused:
            self._release()
        says = self._server.http.get("/server_info")
        check_settings(says, self._recipe, self.url)
        self.release = release_in(says, f"{self.url}/server_info")

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        """See `Replica`."""
        # where old keys and values outlive an update, none of them may serve a request that begins after it
        salt = self._version if self._recipe.rl.asynchrony.keeps_cache else None
        body = to_json(request, sampling, self._recipe.seed, self._recipe.model.max_position_embeddings, salt)
        return from_json(request, sampling, self._server.http.post("/generate", body), self._recipe)

    def responsive(self) -> bool:
        """See `Replica`."""
        if self._server.exit_code is not None:
            return False
        try:
            self._server.http.get("/server_info")
        except (ServerUnreachableError, EngineError):
            return False
        return True

    def workers(self) -> int:
        """See `Replica`."""
        return int(self._server.http.get("/server_info")["tp_size"])

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        """See `Replica`."""
        if self._paused:
            self._release()
        self._update = Update(self._server, self._recipe, self._folder, transport)
        self._paused = True
        self._server.order("/pause_generation", {"mode": self._pause_mode})
        self._server.order("/begin_weight_update", {})

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
        self._update.finish(version, flush=not self._recipe.rl.asynchrony.keeps_cache)
        self._server.order("/end_weight_update", {})
        self._version = str(version)
        self._server.order("/continue_generation", {})
        self._paused = False

    def abort(self) -> None:
        """See `Replica`."""
        self._server.http.post("/abort_request", {"abort_all": True}, self._recipe.engine.health_timeout_s)

    def end(self) -> None:
        """See `Replica`. A server of somebody else's is not left paused."""
        if self._paused and not self._server.is_own:
            self._release()
        self._server.end()

    @property
    def _pause_mode(self) -> str:
        """What becomes of responses under way at an update."""
        asynchrony = self._recipe.rl.asynchrony
        if asynchrony.keeps_cache:
            return "in_place"
        # put back, and read anew by the new weights
        return "retract" if asynchrony.goes_on else "abort"

    def _release(self) -> None:
        """Ends an update that nobody will finish, and lets the server go on; its version, -1, says what it holds."""
        wait_s = self._recipe.engine.health_timeout_s
        with contextlib.suppress(ServerUnreachableError, EngineError):
            self._server.http.post("/end_weight_update", {}, wait_s)
        with contextlib.suppress(ServerUnreachableError, EngineError):
            self._server.http.post("/continue_generation", {}, wait_s)
        self._paused = False

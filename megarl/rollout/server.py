"""One server of an engine, whichever engine it is: its process, where the run has started it, and HTTP to it."""

import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError
from megarl.rollout.http_client import Client
from megarl.rollout.server_process import ServerProcess, free_port

_POLL_S = 0.5


class Launch(Protocol):
    """How an engine is started: a module with these two functions."""

    def server_command(self, recipe: Recipe, model: Path, port: int, host: str = "127.0.0.1") -> list[str]:
        """Arguments of a server on one interface, whose model is described in the folder `model`."""

    def server_environment(self, inherited: Mapping[str, str], token: str) -> dict[str, str]:
        """All of its environment."""


class Server:
    """Implements what `megarl.rollout.replica.Replica` asks that is the same for every engine.

    Attributes:
        url: where it is, or what it will be.
        is_own: whether the run starts it.
    """

    def __init__(self, recipe: Recipe, folder: Path, url: str | None, engine: str, launch: Launch) -> None:
        """Args: recipe: says how. folder: for config.json, which is there, and the log. url: of a running server."""
        self._recipe, self._folder, self._launch = recipe, folder, launch
        self._process: ServerProcess | None = None
        self._client: Client | None = None
        self.is_own = url is None
        self.url = url or f"a server of {engine}"
        if url is not None:
            self._connect(url, os.environ.get(recipe.engine.token_variable, ""))

    @property
    def http(self) -> Client:
        """Its endpoints."""
        if self._client is None:
            raise RuntimeError("the server was not started")
        return self._client

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or where it is not the run's own."""
        return None if self._process is None else self._process.exit_code

    def start(self) -> None:
        """Starts it; where it is somebody else's, connects anew."""
        if not self.is_own:
            self.http.close()
            self._connect(self.url, os.environ.get(self._recipe.engine.token_variable, ""))
            return
        port, token = free_port(), secrets.token_urlsafe(32)
        self._process = ServerProcess(
            self._launch.server_command(self._recipe, self._folder, port),
            self._launch.server_environment(os.environ, token),
            self._folder / "server.log",
        )
        self._connect(f"http://127.0.0.1:{port}", token)

    def wait_until(self, up: Callable[[], bool], give_up: Callable[[], bool]) -> None:
        """Returns once `up` holds.

        Raises:
            EngineError: the server ended, or took longer than `engine.start_timeout_s`, or `give_up` held before.
        """
        deadline = time.monotonic() + self._recipe.engine.start_timeout_s
        while not up():
            if self._process is not None and self._process.exit_code is not None:
                if not self._process.lost_its_port():
                    raise self._process.failure()
                self.start()
            if give_up():
                raise EngineError(f"{self.url} was not up yet when the run was told to stop")
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self.url} did not come up within engine.start_timeout_s={self._recipe.engine.start_timeout_s:g}"
                )
            time.sleep(_POLL_S)

    def order(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a POST that is no request for a response; errors as of `Client.post`."""
        return self.http.post(path, body, timeout_s=self._recipe.engine.update_timeout_s)

    def end(self) -> None:
        """Ends the server where it is the run's own, and drops all connections."""
        if self._process is not None:
            self._process.end()
        if self._client is not None:
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

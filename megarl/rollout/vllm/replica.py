"""One vLLM server behind the endpoints of its reinforcement-learning API."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError
from megarl.rollout.http_client import release_in
from megarl.rollout.replica import ServerUnreachableError
from megarl.rollout.server import Server
from megarl.rollout.server_environment import engine_dtype
from megarl.rollout.types import Completion, Request, SamplingParams
from megarl.rollout.unfit import unfit
from megarl.rollout.vllm import command
from megarl.rollout.vllm.settings import told_settings
from megarl.rollout.vllm.wire import from_json, to_json


class VllmReplica:
    """Implements `megarl.rollout.replica.Replica`."""

    def __init__(self, recipe: Recipe, folder: Path, url: str | None = None) -> None:
        """Args: recipe: says how. folder: for config.json, which is there, and the log. url: of a running server."""
        self._recipe = recipe
        self._server = Server(recipe, folder, url, "vLLM", command)
        self._opened: dict[str, Any] | None = None
        self._updating = False
        self._version, self.release = "none", ""

    @property
    def url(self) -> str:
        """See `Replica`."""
        return self._server.url

    def start(self) -> None:
        """See `Replica`."""
        self._opened, self._updating = None, False
        self._server.start()

    def wait_until_ready(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """See `Replica`."""
        self._server.wait_until(lambda: self._server.http.up(), give_up)
        self._check_settings()
        self.release = release_in(self._server.http.get("/version"), f"{self.url}/version")

    def generate(self, request: Request, sampling: SamplingParams) -> Completion:
        """See `Replica`."""
        # where old keys and values outlive an update, none of them may serve a request that begins after it
        salt = self._version if self._recipe.rl.asynchrony.keeps_cache else None
        body = to_json(request, sampling, self._recipe.seed, self._recipe.model.max_position_embeddings, salt)
        return from_json(request, self._server.http.post("/inference/v1/generate", body))

    def responsive(self) -> bool:
        """See `Replica`."""
        if self._server.exit_code is not None:
            return False
        try:
            # the front knows of a core that died, and asks one that lives
            self._server.http.get("/health")
            self._server.http.get("/is_paused")
        except (ServerUnreachableError, EngineError):
            return False
        return True

    def workers(self) -> int:
        """See `Replica`."""
        return int(self._server.http.get("/get_world_size")["world_size"])

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        """See `Replica`."""
        asynchrony = self._recipe.rl.asynchrony
        if asynchrony.keeps_cache:
            self._server.order("/pause?mode=keep&clear_cache=false")
        else:
            # what goes on after it is read anew by the new weights
            self._server.order(f"/pause?mode={'keep' if asynchrony.goes_on else 'abort'}")
        if self._updating or self._opened is None:
            # an update that another trainer, or this one, left in the middle
            self._rpc("megarl_abandon_update")
        if self._opened != transport:
            self._server.order("/init_weight_transfer_engine", {"init_info": dict(transport)})
            self._opened = dict(transport)
        self._updating = True
        self._server.order("/start_weight_update")

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None) -> None:
        """See `Replica`."""
        self._server.order("/update_weights", {"update_info": {"where": bucket, "digests_of": digests_of}})

    def received_digests(self) -> list[dict[str, str]]:
        """See `Replica`."""
        workers: list[dict[str, str]] = self._rpc("megarl_digests")
        return workers

    def left_out(self) -> list[str]:
        """See `Replica`."""
        return [name for names in self._rpc("megarl_left_out") for name in names]

    def seconds(self) -> list[dict[str, float]]:
        """What the newest update took in each worker, by part."""
        found: list[dict[str, float]] = self._rpc("megarl_seconds")
        return found

    def finish_update(self, version: int) -> None:
        """See `Replica`."""
        self._server.order("/finish_weight_update", {"weight_version": str(version)})
        if not self._recipe.rl.asynchrony.keeps_cache:
            # keys and values of the old weights
            self._server.order("/reset_prefix_cache")
        self._version = str(version)
        self._server.order("/resume")
        self._updating = False

    def abort(self) -> None:
        """See `Replica`."""
        soon = self._recipe.engine.health_timeout_s
        self._server.http.post("/pause?mode=abort&clear_cache=false", timeout_s=soon)
        self._server.http.post("/resume", timeout_s=soon)

    def end(self) -> None:
        """See `Replica`."""
        self._server.end()

    def _rpc(self, method: str) -> Any:
        return self._server.order("/collective_rpc", {"method": method})["results"]

    def _check_settings(self) -> None:
        """What the recipe says about sampling and precision is what the server says that it uses.

        Raises:
            EngineError, ServerSettingsError: it is not; see `unfit`.
        """
        wanted = {
            "logprobs_mode": "processed_logprobs",
            "dtype": engine_dtype(self._recipe),
            "max_model_len": self._recipe.model.max_position_embeddings,
        }
        # it looks its machine over for the answer, by other programs: part of the start, and no sign of health
        told = self._server.http.get("/server_info?config_format=json", self._recipe.engine.start_timeout_s)
        says = told_settings(told, wanted, self.url)
        for name, value in wanted.items():
            if str(says[name]).removeprefix("torch.") != str(value):
                raise unfit(self._recipe, self.url, f"runs with {name}={says[name]}, and the recipe needs {value}")

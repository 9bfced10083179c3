"""A vLLM server in fp32 and one in bf16 for all tests of a session, and a trainer of one process beside them."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from megarl.config.load import load_recipe
from megarl.config.model import ParallelConfig
from megarl.config.schema import Recipe
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.rollout.build import build_fleet
from megarl.rollout.fleet import Fleet
from tests.engines.served import OVERRIDES, VOCAB, Notes
from tests.runs import RECIPE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs vLLM where it is not installed."""
    if find_spec("vllm") is None:
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed here; `make test-vllm` installs it"))


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The demo's model, served in fp32."""
    folder = tmp_path_factory.mktemp("served")
    return load_recipe(RECIPE, [*OVERRIDES, f"output_dir={folder}"]).recipe


@pytest.fixture(scope="session")
def notes() -> Notes:
    """What the fleet told."""
    return []


@pytest.fixture(scope="session")
def fleet(recipe: Recipe, notes: Notes) -> Iterator[Fleet]:
    """One server, without weights; its log is in the recipe's output_dir."""
    made = build_fleet(recipe, VOCAB, notes.append)
    try:
        made.revive()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The demo's model with a head of its own, served in bf16."""
    own = ("precision.dtype=bf16", "model.tie_embeddings=false", f"output_dir={tmp_path_factory.mktemp('bf16')}")
    return load_recipe(RECIPE, [*OVERRIDES, *own]).recipe


@pytest.fixture(scope="session")
def untied_fleet(untied: Recipe) -> Iterator[Fleet]:
    """One server in bf16, without weights."""
    made = build_fleet(untied, VOCAB, print)
    try:
        made.revive()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def layout() -> Iterator[Layout]:
    """A trainer of one process."""
    yield join_world(ParallelConfig(), seed=1)
    leave_world()


@pytest.fixture
def server_log(recipe: Recipe) -> Path:
    """Where the session's server writes."""
    return Path(recipe.output_dir) / "engine" / "0" / "server.log"

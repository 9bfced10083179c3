"""One SGLang server for all of these tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from megarl.config.schema import Recipe
from megarl.megatron.models import FAMILIES
from megarl.rollout.sglang.replica import SglangReplica
from tests.engines.sglang.servers import PYTHON, STAND_INS, sglang_recipe
from tests.unit.megatron.tiny import VOCAB


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies here, and skips it where SGLang is not installed."""
    for item in items:
        if "tests/engines/sglang/" in item.path.as_posix():
            item.add_marker(pytest.mark.sglang)
            if not PYTHON:
                reason = "no MEGARL_SGLANG_PYTHON; `make test-sglang` installs SGLang into an environment of its own"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """The recipe of all of these tests."""
    return sglang_recipe(tmp_path_factory.mktemp("sglang"))


@pytest.fixture(scope="session")
def replica(recipe: Recipe) -> Iterator[SglangReplica]:
    """A server that is up and has random weights of its own."""
    folder = Path(recipe.output_dir) / "engine" / "0"
    FAMILIES[recipe.model.family].hf_config(recipe.model, VOCAB).save_pretrained(folder)
    server = SglangReplica(recipe, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(STAND_INS), os.environ.get("PYTHONPATH", "")]))
        try:
            server.start()
            server.wait_until_ready()
            yield server
        finally:
            server.end()

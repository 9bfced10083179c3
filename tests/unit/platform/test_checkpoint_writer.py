"""A synchronous save without a manager process."""

import inspect
import multiprocessing
from pathlib import Path

import pytest
import torch

from megarl.platform import install
from megarl.platform.checkpoint_writer import fast_sync_save
from tests.unit.platform.reference import tiny_config, tiny_gpt

install()

pytestmark = pytest.mark.usefixtures("world_of_one")


def test_saved_model_loads_and_no_process_stays(tmp_path: Path) -> None:
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    model, other = tiny_gpt(tiny_config()), tiny_gpt(tiny_config())
    strategy = (
        {"async_strategy": "mcore"} if "async_strategy" in inspect.signature(dist_checkpointing.save).parameters else {}
    )
    before = filesystem_async._results_queue
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        with fast_sync_save():
            dist_checkpointing.save({"model": model.sharded_state_dict()}, str(tmp_path / folder), **strategy)
        assert multiprocessing.active_children() == []
    assert filesystem_async._results_queue is before
    loaded = dist_checkpointing.load({"model": other.sharded_state_dict()}, str(tmp_path / "second"))["model"]
    other.load_state_dict(loaded)
    expected = dict(model.named_parameters())
    assert all(torch.equal(parameter, expected[name]) for name, parameter in other.named_parameters())


def test_queue_is_restored_when_the_save_fails() -> None:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    before = filesystem_async._results_queue
    with pytest.raises(OSError), fast_sync_save():
        assert filesystem_async._results_queue is not before
        raise OSError("disk full")
    assert filesystem_async._results_queue is before

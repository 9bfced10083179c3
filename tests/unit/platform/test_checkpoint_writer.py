"""A save without a manager process, whose files may be written after the model has gone on."""

import contextlib
import multiprocessing
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from megarl.platform import install
from megarl.platform.checkpoint_writer import plan_write
from megarl.platform.pending_write import HostMemory
from megarl.platform.platform import Platform
from tests.unit.platform.reference import tiny_config, tiny_gpt

install()

pytestmark = pytest.mark.usefixtures("world_of_one")


def loaded_parameters(folder: Path) -> dict[str, torch.Tensor]:
    from megatron.core import dist_checkpointing

    model = tiny_gpt(tiny_config())
    model.load_state_dict(dist_checkpointing.load({"model": model.sharded_state_dict()}, str(folder))["model"])
    return dict(model.named_parameters())


@pytest.mark.parametrize("memory", [HostMemory(), None])
def test_saved_model_loads_and_no_process_stays(tmp_path: Path, memory: HostMemory | None) -> None:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    model = tiny_gpt(tiny_config())
    before = filesystem_async._results_queue
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        pending = plan_write({"model": model.sharded_state_dict()}, tmp_path / name, memory)
        assert filesystem_async._results_queue is before
        assert not any(file.exists() for file in pending.files)
        pending.write()
        pending.finish()
        pending.write_index()
        assert all(file.stat().st_size > 0 for file in pending.files)
        assert multiprocessing.active_children() == []
    found = loaded_parameters(tmp_path / "second")
    assert all(torch.equal(parameter, found[name]) for name, parameter in model.named_parameters())


def test_what_is_written_later_is_what_was_copied(tmp_path: Path) -> None:
    model = tiny_gpt(tiny_config())
    at_plan = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    pending = plan_write({"model": model.sharded_state_dict()}, tmp_path, HostMemory())
    pending.copy()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    writer = threading.Thread(target=pending.write)
    writer.start()
    writer.join(timeout=60)
    pending.finish()
    pending.write_index()
    found = loaded_parameters(tmp_path)
    assert all(torch.equal(tensor, found[name]) for name, tensor in at_plan.items())


def test_what_may_change_before_the_copy_is_copied_at_once(tmp_path: Path) -> None:
    """Of two tensors that change after the plan, the one that was named is written as it was."""
    model = tiny_gpt(tiny_config())
    (first, named), (other, unnamed) = list(model.named_parameters())[:2]
    before = named.detach().clone()
    pending = plan_write({"model": model.sharded_state_dict()}, tmp_path, HostMemory(), [named])
    with torch.no_grad():
        for parameter in (named, unnamed):
            parameter.add_(1.0)
    pending.write()
    pending.finish()
    pending.write_index()
    found = loaded_parameters(tmp_path)
    assert torch.equal(found[first], before) and not torch.equal(named, before)
    assert torch.equal(found[other], unnamed)


def test_what_is_copied_from_lives_until_the_device_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is done only at the end of `beside`; until then its memory must not be given out anew."""
    sources: list[weakref.ref[torch.Tensor]] = []
    left: list[bool] = []

    class Noting(HostMemory):
        def copy(self, tensor: torch.Tensor) -> torch.Tensor:
            sources.append(weakref.ref(tensor))
            return super().copy(tensor)

    @contextlib.contextmanager
    def beside_as_on_a_gpu(_: Platform, mark: None) -> Iterator[None]:
        yield
        left.extend(source() is not None for source in sources)

    monkeypatch.setattr(Platform, "beside", beside_as_on_a_gpu)
    model = tiny_gpt(tiny_config())
    pending = plan_write({"model": model.sharded_state_dict()}, tmp_path, Noting(), list(model.parameters()))
    pending.copy()
    assert len(left) >= len(list(model.parameters())) and all(left)
    assert not any(source() is not None for source in sources)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    model = tiny_gpt(tiny_config())
    pending = plan_write({"model": model.sharded_state_dict()}, tmp_path)
    pending.files[0].mkdir()
    with pytest.raises(IsADirectoryError):
        pending.write()


def test_names_are_restored_when_the_plan_fails(tmp_path: Path) -> None:
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    def held() -> tuple[Any, dict[str, Any]]:
        return filesystem_async._results_queue, dict(vars(filesystem_async.FileSystemWriterAsync))

    before = held()
    with pytest.raises(FileNotFoundError):
        plan_write({}, tmp_path / "missing")
    assert held() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is full")
def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    """torch's archives raise another error, of their place in the file; Python's part has the system's behind it."""
    state = {"model": tiny_gpt(tiny_config()).sharded_state_dict(), "number": 1}
    for name in ("common", "tensors"):
        (tmp_path / name).mkdir()
    pending = plan_write(dict(state), tmp_path / "tensors")
    # newer releases keep what is no tensor in the tensors' files
    if (tmp_path / "tensors/common.pt").exists():
        (tmp_path / "common/common.pt").symlink_to("/dev/full")
        with pytest.raises(OSError, match="torch could not write an archive"):
            plan_write(dict(state), tmp_path / "common")
    for file in pending.files:
        file.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        pending.write()

"""Checkpoint folders: committed, pruned, and passed over where they are damaged."""

import itertools
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from megarl.checkpoint.retention import Retention
from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import MANIFEST, CheckpointStore
from megarl.config.errors import RunFolderError


def save(
    store: CheckpointStore,
    step: int,
    phase: str = "rl",
    text: str = "weights",
    facts: Mapping[str, Any] = {"recipe_hash": "abc"},
) -> Path:
    """A checkpoint of two files, one in a folder."""
    staging = store.begin()
    (staging / "tensors").mkdir()
    (staging / "tensors" / "0.bin").write_bytes(text.encode() * 100)
    (staging / "rng.bin").write_bytes(bytes([step % 256]) * 10)
    return store.commit(RunState(phase=phase, step=step, problems_drawn=16 * step), dict(facts))  # type: ignore[arg-type]


def test_commit_is_found_with_its_state_and_facts(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.newest() is None and store.names() == []
    path = save(store, 7)
    found = store.newest()
    assert found is not None and found[0] == path
    assert RunState(**found[1]["state"]) == RunState(phase="rl", step=7, problems_drawn=112)
    assert found[1]["recipe_hash"] == "abc"
    assert sorted(found[1]["files"]) == ["rng.bin", "tensors/0.bin"]
    assert not store.staging.exists()


def test_names_sort_in_the_order_of_training(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=9)
    order = [("sft", 5), ("sft", 400), ("rl", 0), ("rl", 9), ("rl", 10), ("rl", 1000), ("done", 0)]
    for phase, step in reversed(order):
        save(store, step, phase)
    assert store.names() == [RunState(phase=phase, step=step).folder_name for phase, step in order]  # type: ignore[arg-type]
    found = store.newest()
    assert found is not None and found[1]["state"]["phase"] == "done"


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_oldest_are_dropped(tmp_path: Path, keep: int) -> None:
    store = CheckpointStore(tmp_path, keep)
    for step in range(5):
        save(store, step)
    assert [int(name[-8:]) for name in store.names()] == list(range(5))[-keep:]


def test_saving_a_state_again_replaces_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    save(store, 1, text="old")
    path = save(store, 1, text="new")
    assert (path / "tensors" / "0.bin").read_bytes() == b"new" * 100
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def flip_a_byte(path: Path) -> None:
    data = bytearray((path / "tensors" / "0.bin").read_bytes())
    data[50] ^= 1
    (path / "tensors" / "0.bin").write_bytes(data)


def cut_a_file(path: Path) -> None:
    file = path / "tensors" / "0.bin"
    file.write_bytes(file.read_bytes()[:-1])


def remove_a_file(path: Path) -> None:
    (path / "rng.bin").unlink()


def make_a_file_unreadable(path: Path) -> None:
    # which the kernel answers with EIO, as it does where a disk has a bad sector
    (path / "rng.bin").unlink()
    (path / "rng.bin").symlink_to("/proc/self/mem")


def tear_the_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes((path / MANIFEST).read_bytes()[:-30])


def nest_the_manifest(path: Path) -> None:
    (path / MANIFEST).write_text("[" * 100_000)


def empty_the_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes(b"")


def blank_the_manifest(path: Path) -> None:
    # what a file system may leave after a power cut
    (path / MANIFEST).write_bytes(b"\0" * 400)


def garble_the_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes(b"\xff\xfe{}")


def drop_the_list_of_files(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    del manifest["files"]
    (path / MANIFEST).write_text(json.dumps(manifest))


def flip_a_digit_of_the_state(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace('"problems_drawn": ', '"problems_drawn": 1'))


def make_the_manifest_a_list(path: Path) -> None:
    (path / MANIFEST).write_text("[]")


def remove_the_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


DAMAGES: dict[Callable[[Path], None], str] = {
    flip_a_byte: "tensors/0.bin is not what was written",
    cut_a_file: "tensors/0.bin is not what was written",
    remove_a_file: "rng.bin is missing",
    make_a_file_unreadable: "rng.bin cannot be read (Input/output error)",
    tear_the_manifest: "its manifest cannot be read",
    nest_the_manifest: "its manifest cannot be read",
    empty_the_manifest: "its manifest cannot be read",
    blank_the_manifest: "its manifest cannot be read",
    garble_the_manifest: "its manifest cannot be read",
    drop_the_list_of_files: "manifest.json is not what was written",
    make_the_manifest_a_list: "manifest.json is not what was written",
    remove_the_manifest: "its manifest cannot be read",
    flip_a_digit_of_the_state: "manifest.json is not what was written",
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.items(), ids=[damage.__name__ for damage in DAMAGES])
def test_a_damaged_checkpoint_is_passed_over_with_its_reason(
    tmp_path: Path, damage: Callable[[Path], None], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    whole = save(store, 1)
    broken = [save(store, 2), save(store, 3)]
    for path in broken:
        damage(path)
    with caplog.at_level(logging.WARNING):
        found = store.newest()
    assert found is not None and found[0] == whole
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    for path, message in zip(reversed(broken), messages, strict=True):
        assert str(path) in message and reason in message


def test_a_whole_checkpoint_gives_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    save(store, 1)
    store.newest()
    assert not caplog.records


def test_only_damaged_ones_are_refused(tmp_path: Path) -> None:
    """Starting anew beside them would overwrite the run."""
    store = CheckpointStore(tmp_path, keep=3)
    flip_a_byte(save(store, 1))
    with pytest.raises(RunFolderError, match=r"is whole \(the last one looked at: tensors/0.bin is not what"):
        store.newest()


def test_what_an_interrupted_save_left_does_not_count(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    whole = save(store, 1)
    (store.begin() / "half.bin").write_bytes(b"half")
    (store.staging / MANIFEST).write_text("{}")
    # a folder without a manifest is no checkpoint either
    (tmp_path / "1-rl-00000009").mkdir()
    found = CheckpointStore(tmp_path, keep=2).newest()
    assert found is not None and found[0] == whole
    path = save(store, 2)
    assert sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()) == [
        MANIFEST,
        "rng.bin",
        "tensors/0.bin",
    ]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_save_never_drops_itself_for_a_damaged_later_one(tmp_path: Path, keep: int) -> None:
    # resumed from 20, since 40 is damaged; then a signal makes it save at 30
    store = CheckpointStore(tmp_path, keep)
    save(store, 40)
    flip_a_byte(tmp_path / "1-rl-00000040")
    path = save(store, 30)
    found = store.newest()
    assert found is not None and found[0] == path


def test_a_copy_that_a_user_kept_is_no_checkpoint(tmp_path: Path) -> None:
    """Nor is it deleted, though it sorts among the oldest."""
    store = CheckpointStore(tmp_path, Retention(1, every=2))
    copy = tmp_path / "1-rl-00000001.good"
    save(store, 1).rename(copy)
    save(store, 3)
    assert store.names() == ["1-rl-00000003"] and copy.is_dir()


def test_a_file_of_another_rank_that_is_not_seen_is_told(tmp_path: Path) -> None:
    """What a network file system may do; without its digest in the manifest the checkpoint would look whole."""
    store = CheckpointStore(tmp_path, keep=1)
    before = save(store, 1)
    (store.begin() / "rng-0.bin").write_bytes(b"here")
    elsewhere = {"rng-1.bin": {"bytes": 4, "sha256": "0" * 64}}
    with pytest.raises(FileNotFoundError, match=r"rng-1\.bin was written by another process"):
        store.commit(RunState(phase="rl", step=2), {}, elsewhere)
    found = store.newest()
    assert found is not None and found[0] == before


@pytest.mark.parametrize("rename", [1, 2, 3])
def test_a_save_killed_as_it_takes_the_place_of_another_loses_neither(tmp_path: Path, rename: int) -> None:
    """Of a step that was saved before its evaluation, and is saved again behind it; killed before the nth rename."""
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 1, text="old")
    if (child := os.fork()) == 0:
        renames = itertools.count(1)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == "os.rename" and next(renames) == rename:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        save(store, 1, text="new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    after = CheckpointStore(tmp_path, keep=1)
    after.recover()
    found = after.newest()
    assert found is not None and (found[0] / "tensors" / "0.bin").read_bytes() == b"old" * 100
    path = save(after, 1, text="new")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


class _RenamesLikeABrokenServer(CheckpointStore):
    """A stand-in for a network file system, which cannot be mounted in a test: what it says of a rename is not so."""

    def __init__(self, folder: Path, *, says: bool, does: bool) -> None:
        super().__init__(folder, keep=2)
        self.says, self.does = says, does

    @property
    def staging(self) -> Path:
        return _PathThatLies(super().staging, says=self.says, does=self.does)


class _PathThatLies(type(Path())):  # type: ignore[misc]
    def __new__(cls, path: Path, *, says: bool, does: bool) -> "_PathThatLies":
        made: _PathThatLies = super().__new__(cls, path)
        made.says, made.does = says, does
        return made

    def rename(self, target: Path) -> Path:
        if self.does:
            Path(self).rename(target)
        if not self.says:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return target


def test_a_rename_that_was_reported_and_not_made_is_found(tmp_path: Path) -> None:
    before = save(CheckpointStore(tmp_path, keep=2), 1)
    with pytest.raises(OSError, match="a rename was reported and not made"):
        save(_RenamesLikeABrokenServer(tmp_path, says=True, does=False), 2)
    found = CheckpointStore(tmp_path, keep=2).newest()
    assert found is not None and found[0] == before


def test_a_rename_that_was_made_and_reported_as_failed_counts(tmp_path: Path) -> None:
    path = save(_RenamesLikeABrokenServer(tmp_path, says=False, does=True), 2)
    found = CheckpointStore(tmp_path, keep=2).newest()
    assert found is not None and found[0] == path


def test_a_rename_that_failed_is_told_and_the_old_stays(tmp_path: Path) -> None:
    before = save(CheckpointStore(tmp_path, keep=1), 1)
    with pytest.raises(FileNotFoundError):
        save(_RenamesLikeABrokenServer(tmp_path, says=False, does=False), 2)
    found = CheckpointStore(tmp_path, keep=1).newest()
    assert found is not None and found[0] == before

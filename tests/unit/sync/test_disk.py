"""Buckets in a folder that may be somebody's."""

from pathlib import Path

import torch

from megarl.sync.bucket import Bucket, TensorSpec
from megarl.sync.disk import DiskReader, DiskSender

NAME = "model.norm.weight"
BUCKET = Bucket.of([TensorSpec(NAME, (3,), torch.float32)])


def sent(sender: DiskSender) -> None:
    weight = torch.randn(3)
    where = sender.write(0, BUCKET, [weight])
    with DiskReader().read(where) as tensors:
        assert tensors[NAME].equal(weight)


def test_only_buckets_are_removed(tmp_path: Path) -> None:
    mine = [tmp_path / "notes.txt", tmp_path / "model-00001.safetensors", tmp_path / "deeper" / "bucket-0.safetensors"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    left = [tmp_path / "bucket-1.safetensors", tmp_path / "bucket-1.new"]
    for path in left:
        path.write_text("of a run that was killed")
    sender = DiskSender(tmp_path)
    assert not [path for path in left if path.exists()]
    sent(sender)
    sender.close()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(mine)


def test_a_folder_that_it_made_is_gone_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "sync"
    sender = DiskSender(folder)
    sent(sender)
    assert folder.stat().st_mode & 0o077 == 0
    sender.close()
    assert not folder.exists()

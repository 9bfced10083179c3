"""What stays in a run's folder of dumps."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from megarl.dumps.errors import DumpError
from megarl.dumps.folder import DumpFolder
from megarl.dumps.schema import SCHEMA, Header


def write(folder: DumpFolder, step: int) -> None:
    empty = pa.record_batch([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)
    folder.write(Header("run", step, "0" * 64, None, "embedded", "fp32", "0"), {}, [empty])


def steps(path: Path) -> list[int]:
    return sorted(int(file.name[5:13]) for file in (path / "dumps").iterdir())


def test_the_newest_are_kept(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, keep=2)
    for step in (8, 9, 10, 11):
        write(folder, step)
    assert steps(tmp_path) == [10, 11]


def test_keep_0_keeps_all(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, keep=0)
    for step in range(1, 13):
        write(folder, step)
    assert steps(tmp_path) == list(range(1, 13))


def test_a_resumed_run_deletes_what_it_writes_again(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, keep=0)
    for step in (1, 2, 3):
        write(folder, step)
    folder.rewind(None)
    assert steps(tmp_path) == [1, 2, 3]
    folder.rewind(2)
    assert steps(tmp_path) == [1, 2]
    folder.rewind(0)
    assert steps(tmp_path) == []


def test_a_dump_that_fails_leaves_the_older_one(tmp_path: Path) -> None:
    folder = DumpFolder(tmp_path, keep=0)
    write(folder, 1)
    before = (tmp_path / "dumps/step-00000001.parquet").read_bytes()

    def broken():
        yield pa.record_batch([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)
        raise RuntimeError("no second batch")

    with pytest.raises(RuntimeError, match="no second batch"):
        folder.write(Header("other", 1, "1" * 64, None, "embedded", "fp32", "0"), {}, broken())
    assert (tmp_path / "dumps/step-00000001.parquet").read_bytes() == before
    assert os.listdir(tmp_path / "dumps") == ["step-00000001.parquet"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "dumps").write_text("a file where the folder belongs")
    with pytest.raises(DumpError, match=r"cannot be written \(File exists\).*observe\.dump_every=0"):
        write(DumpFolder(tmp_path, keep=0), 1)

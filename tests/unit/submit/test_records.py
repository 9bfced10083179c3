"""Records of submissions are files that anybody may have changed."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from megarl.config.errors import UserError
from megarl.submit.records import Record, read, write

RECORD = Record("20261130T120000.000000", "demo", ("7", "8"), ("/runs/a",), "/logs/demo.sbatch")


def test_a_record_comes_back(tmp_path: Path) -> None:
    write(tmp_path, RECORD)
    assert read(tmp_path) == [RECORD]
    assert read(tmp_path / "none") == []


@pytest.mark.parametrize("change", [{"jobs": 7}, {"jobs": []}, {"runs": [1]}, {"name": None}, {"luck": 1}, None])
def test_garbage_is_named(change: dict[str, object] | None, tmp_path: Path) -> None:
    text = "[]" if change is None else json.dumps({**asdict(RECORD), **change})
    (tmp_path / "demo-1.job.json").write_text(text)
    with pytest.raises(UserError, match=r"demo-1\.job\.json is "):
        read(tmp_path)

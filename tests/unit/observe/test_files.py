import json
from pathlib import Path

import pytest

from megarl.config.errors import RunFolderError
from megarl.observe.files import JsonlFile, json_line, nulled, read_json, read_jsonl_tolerant, write_atomic


def test_write_atomic_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomic(path, b"old, and longer")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file_and_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    with pytest.raises(OSError):
        write_atomic(path, b"a file cannot replace a folder")
    assert path.is_dir()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_last_line_torn_at_any_byte_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "log.jsonl"
    last = json_line({"é": 1.25})
    path.write_bytes(b'{"a": 1}\n' + last[:cut])
    whole = json.loads(last[:cut]) if cut >= len(last) - 1 else None
    expected = [{"a": 1}] if whole is None else [{"a": 1}, whole]
    assert read_jsonl_tolerant(path) == expected
    log = JsonlFile(path)
    log.append({"b": 2})
    log.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [*expected, {"b": 2}]


@pytest.mark.parametrize("line", [b'{"a":', b"[" * 100_000])
def test_a_damaged_line_inside_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 3}\n')
    with pytest.raises(RunFolderError, match=r"Line 2 of .*log\.jsonl"):
        read_jsonl_tolerant(path)


def test_a_missing_file_is_empty_and_a_list_is_refused(tmp_path: Path) -> None:
    assert read_jsonl_tolerant(tmp_path / "none") == []
    assert read_json(tmp_path / "none") == {}
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(RunFolderError, match=r"list\.json"):
        read_json(tmp_path / "list.json")


def test_nulled_lists_what_it_lost() -> None:
    values = {"a": 1.0, "b": float("nan"), "c": float("-inf"), "d": "nan"}
    assert nulled(values) == {"a": 1.0, "b": None, "c": None, "d": "nan", "nonfinite": ["b", "c"]}
    assert "nonfinite" not in nulled({"a": 1.0})


def test_json_line_refuses_nan_and_survives_a_lone_surrogate() -> None:
    with pytest.raises(ValueError):
        json_line({"a": float("nan")})
    assert json.loads(json_line({"a": "x\ud800\u2028\ny"}).decode()) == {"a": "x\ud800\u2028\ny"}

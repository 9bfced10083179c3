"""Which rank failed first, as the ranks note it for their launcher."""

import json
from pathlib import Path

import pytest

from megarl.platform.failures import note_failure, noted_failures
from megarl.platform.joined import RENDEZVOUS


def test_the_first_is_told_to_those_that_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RENDEZVOUS, str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    assert note_failure(ValueError("two\n  lines")) is None
    monkeypatch.setenv("RANK", "0")
    earlier = note_failure(ConnectionError("lost rank 1"))
    assert earlier is not None and (earlier.rank, earlier.error) == (1, "ValueError: two lines")
    assert [failure.rank for failure in noted_failures(tmp_path)] == [1, 0]


def test_nothing_is_noted_for_another_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RENDEZVOUS, "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    assert note_failure(ValueError("alone")) is None


def test_under_torchrun_the_first_alone_is_in_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 2 and 3 of a world, the first two of their node."""
    monkeypatch.delenv(RENDEZVOUS, raising=False)
    files = [tmp_path / str(local_rank) / "error.json" for local_rank in range(2)]
    told = []
    for local_rank in (1, 0):
        files[local_rank].parent.mkdir()
        for name, value in {"RANK": 2 + local_rank, "LOCAL_RANK": local_rank}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(files[local_rank]))
        try:
            raise ValueError(f"of rank {2 + local_rank}")
        except ValueError as error:
            told.append(note_failure(error))
    assert told[0] is None
    assert told[1] is not None and (told[1].rank, told[1].error) == (3, "ValueError: of rank 3")
    assert not files[0].exists()
    assert "raise ValueError" in json.loads(files[1].read_text())["message"]["extraInfo"]["py_callstack"]


@pytest.mark.parametrize("text", ["", "{", '{"message": "killed"}', "[]"])
def test_a_file_that_is_not_whole_hides_no_error(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RENDEZVOUS, raising=False)
    for local_rank in ("0", "1"):
        (tmp_path / local_rank).mkdir()
    (tmp_path / "1" / "error.json").write_text(text)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "0" / "error.json"))
    assert note_failure(ConnectionError("lost rank 1")) is None

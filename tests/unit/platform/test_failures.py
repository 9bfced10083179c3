"""Which rank failed first, as the ranks note it for their launcher."""

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
    monkeypatch.delenv(RENDEZVOUS, raising=False)
    monkeypatch.setenv("RANK", "0")
    assert note_failure(ValueError("alone")) is None

"""Responses that wait come back from a checkpoint as they were."""

import math
import resource
from pathlib import Path

import pytest

from megarl.checkpoint.responses import RESPONSES, load_responses, save_responses
from megarl.checkpoint.state import RunState
from megarl.rollout import Completion, Request, VersionSpan


def completion(name: str, tokens: tuple[int, ...], log_probs: tuple[float | None, ...]) -> Completion:
    spans = (VersionSpan(3, 0, 1, 1), VersionSpan(4, 1, len(tokens))) if len(tokens) > 1 else ()
    return Completion(
        Request(name, 2, (7, 8), "rl/5"), tokens, log_probs, "abort" if len(tokens) > 2 else "stop", spans
    )


def test_they_come_back_bit_for_bit(tmp_path: Path) -> None:
    awaited = {
        16: {0: completion("a", (1, 2, 3), (-0.1, -1 / 3, -2e-8)), 3: completion("b", (9, 1), (-1e-300, -7.0))},
        20: {1: completion("c", (), ())},
    }
    save_responses(tmp_path, awaited)
    loaded = load_responses(tmp_path)
    assert loaded == awaited
    assert [span.replica for span in loaded[16][0].versions] == [1, None]


def test_a_log_prob_that_is_not_there_stays_so(tmp_path: Path) -> None:
    save_responses(tmp_path, {0: {0: completion("a", (1, 2), (None, -1.0))}})
    first, second = load_responses(tmp_path)[0][0].log_probs
    assert first is not None and math.isnan(first)
    assert second == -1.0


def test_nothing_is_no_file(tmp_path: Path) -> None:
    save_responses(tmp_path, {})
    assert not (tmp_path / RESPONSES).exists()
    assert load_responses(tmp_path) == {}


def test_a_disk_that_takes_no_more_is_told_as_one(tmp_path: Path) -> None:
    """Which a run puts into a sentence; safetensors has an error of its own for it."""
    awaited = {0: {0: completion("a", tuple(range(1000)), (-1.0,) * 1000)}}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_responses(tmp_path, awaited)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_they_are_no_part_of_the_manifest() -> None:
    state = RunState(awaited={0: {0: completion("a", (1, 2), (-1.0, -1.0))}})
    assert "awaited" not in state.as_dict()
    assert state.as_dict() == RunState().as_dict()
    assert state.awaited, "the state itself keeps them"

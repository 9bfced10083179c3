import json
import math
from pathlib import Path

from megarl.observe.samples import Sample, SampleWriter


def sample(index: int, advantage: float = 0.5) -> Sample:
    return Sample("p1", index, "17+5=", "é\n\\boxed{22}", 1.0, advantage, 9, "stop", 3)


def test_a_sample_is_readable_text_on_one_line(tmp_path: Path) -> None:
    with SampleWriter(tmp_path) as samples:
        samples.write(2, [sample(0), sample(1, math.nan)])
    first, second = (tmp_path / "samples.jsonl").read_text("utf-8").splitlines()
    assert "é\\n\\\\boxed{22}" in first
    assert json.loads(first) == {
        "phase": "rl",
        "step": 2,
        "problem_id": "p1",
        "sample": 0,
        "prompt": "17+5=",
        "response": "é\n\\boxed{22}",
        "reward": 1.0,
        "advantage": 0.5,
        "tokens": 9,
        "finish_reason": "stop",
        "weight_version": 3,
    }
    assert json.loads(second)["advantage"] is None
    assert json.loads(second)["nonfinite"] == ["advantage"]


def test_rewind_drops_later_steps_and_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with SampleWriter(tmp_path) as samples:
        for step in (1, 2, 3):
            samples.write(step, [sample(0), sample(1)])
    path.write_bytes(path.read_bytes()[:-3])
    with SampleWriter(tmp_path) as samples:
        samples.rewind(("sft", "rl"), "rl", 2)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 1, 2, 2]
        samples.rewind(("sft", "rl"), "sft", 700)
    assert path.read_bytes() == b""

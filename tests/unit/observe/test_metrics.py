import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from megarl.config.errors import UserError
from megarl.observe.metrics import MetricsWriter, reproducible
from megarl.observe.mirrors import check_wandb

PHASES = ("sft", "rl")


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def write_run(folder: Path, tensorboard: bool = False) -> None:
    with MetricsWriter(folder, tensorboard=tensorboard) as metrics:
        for step in (1, 2, 3):
            metrics.write("sft", step, {"sft/loss": 1 / step, "lr": 0.5})
        for step in (1, 2, 3):
            metrics.write("rl", step, {"reward/mean": step / 4, "lr": 0.25, "seconds/step": 1.5})


def test_a_line_is_on_disk_when_write_returns_with_its_keys_in_order(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path, tensorboard=False)
    metrics.write("rl", 3, {"reward/mean": 0.5, "lr": 1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"phase": "rl", "step": 3, "lr": 1.0, "reward/mean": 0.5}\n'
    metrics.close()


def test_nan_and_infinity_become_null_and_are_listed(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        metrics.write("rl", 1, {"z": math.inf, "a": math.nan, "lr": 0.5})
    assert lines_of(tmp_path) == [{"phase": "rl", "step": 1, "a": None, "lr": 0.5, "z": None, "nonfinite": ["a", "z"]}]


def test_a_metric_cannot_take_a_key_of_the_line(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as metrics, pytest.raises(ValueError, match="'step'"):
        metrics.write("rl", 1, {"step": 2.0})
    assert lines_of(tmp_path) == []


def test_reproducible_drops_the_clock_only() -> None:
    line = {
        "phase": "rl",
        "step": 1,
        "lr": 0.5,
        "a": None,
        "seconds/step": 1.0,
        "tokens_per_s/update": None,
        "nonfinite": ["a", "tokens_per_s/update"],
    }
    assert reproducible(line) == {"phase": "rl", "step": 1, "lr": 0.5, "a": None, "nonfinite": ["a"]}
    assert reproducible({"step": 1, "seconds/x": None, "nonfinite": ["seconds/x"]}) == {"step": 1}


@pytest.mark.parametrize(
    ("phase", "step", "kept"),
    [
        ("rl", 2, [("sft", 1), ("sft", 2), ("sft", 3), ("rl", 1), ("rl", 2)]),
        ("rl", 0, [("sft", 1), ("sft", 2), ("sft", 3)]),
        ("sft", 1, [("sft", 1)]),
        ("sft", 0, []),
        ("rl", 99, [("sft", 1), ("sft", 2), ("sft", 3), ("rl", 1), ("rl", 2), ("rl", 3)]),
    ],
)
def test_rewind_keeps_the_lines_up_to_the_point(
    tmp_path: Path, phase: str, step: int, kept: list[tuple[str, int]]
) -> None:
    write_run(tmp_path)
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"phase": "rl", "step": 4, "rew')
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        metrics.rewind(PHASES, phase, step)
        assert [(line["phase"], line["step"]) for line in lines_of(tmp_path)] == kept
        metrics.write("rl", 7, {"lr": 0.125})
    assert lines_of(tmp_path)[len(kept) :] == [{"phase": "rl", "step": 7, "lr": 0.125}]
    assert not list(tmp_path.glob(".*"))


def test_rewind_refuses_a_phase_that_the_order_lacks(tmp_path: Path) -> None:
    write_run(tmp_path)
    with MetricsWriter(tmp_path, tensorboard=False) as metrics, pytest.raises(ValueError):
        metrics.rewind(("rl",), "rl", 1)
    assert len(lines_of(tmp_path)) == 6


def test_tensorboard_has_a_run_a_phase_and_prefixes_bare_keys(tmp_path: Path) -> None:
    write_run(tmp_path, tensorboard=True)
    assert scalars(tmp_path / "tensorboard" / "rl", "reward/mean") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert scalars(tmp_path / "tensorboard" / "rl", "rl/lr") == [(1, 0.25), (2, 0.25), (3, 0.25)]
    assert scalars(tmp_path / "tensorboard" / "sft", "sft/lr") == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_tensorboard_follows_a_rewind(tmp_path: Path) -> None:
    write_run(tmp_path, tensorboard=True)
    with MetricsWriter(tmp_path) as metrics:
        metrics.rewind(PHASES, "rl", 1)
        metrics.write("rl", 2, {"reward/mean": math.nan, "lr": 0.0625})
    assert scalars(tmp_path / "tensorboard" / "rl", "rl/lr") == [(1, 0.25), (2, 0.0625)]
    assert math.isnan(scalars(tmp_path / "tensorboard" / "rl", "reward/mean")[-1][1])
    assert len(scalars(tmp_path / "tensorboard" / "sft", "sft/loss")) == 3


def test_tensorboard_hides_a_phase_that_a_rewind_drops_whole(tmp_path: Path) -> None:
    write_run(tmp_path, tensorboard=True)
    with MetricsWriter(tmp_path) as metrics:
        metrics.rewind(PHASES, "sft", 3)
    assert scalars(tmp_path / "tensorboard" / "rl", "reward/mean") == []
    assert len(scalars(tmp_path / "tensorboard" / "sft", "sft/loss")) == 3


def test_wandb_asked_for_and_absent_is_refused_before_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    check_wandb(None)
    with pytest.raises(UserError, match=r"observe\.wandb_project is 'demo'"):
        check_wandb("demo")
    with pytest.raises(
        UserError, match=r"observe\.wandb_project is 'demo'.*pip install -c constraints.txt -e '\.\[wandb\]'"
    ):
        MetricsWriter(tmp_path / "run", wandb_project="demo")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_gets_every_phase_with_its_own_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with MetricsWriter(tmp_path, tensorboard=False, wandb_project="demo", run_config={"seed": 1}) as metrics:
        metrics.write("sft", 1, {"sft/loss": 1.0, "seconds/step": 0.5})
        metrics.write("rl", 1, {"lr": 0.5, "seconds/step": 0.25})
        run = metrics._mirrors[0]._run  # type: ignore[attr-defined]
        summary = dict(run.summary)
    assert run.id == (tmp_path / "wandb_run_id").read_text()
    assert {key: summary[key] for key in ("sft/loss", "sft/seconds/step", "rl/lr", "rl/seconds/step", "rl/step")} == {
        "sft/loss": 1.0,
        "sft/seconds/step": 0.5,
        "rl/lr": 0.5,
        "rl/seconds/step": 0.25,
        "rl/step": 1,
    }

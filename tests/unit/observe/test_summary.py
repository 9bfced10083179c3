import io
import json
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from megarl.config.errors import RunFolderError
from megarl.observe.metrics import MetricsWriter
from megarl.observe.summary import write_summary
from megarl.observe.table import summary_table


def shown(summary: dict[str, object], width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(summary_table(summary, "run"))
    return console.export_text()


def test_a_whole_run(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/mean"] for line in lines if line["phase"] == "rl"]
    summary = write_summary(run_folder)
    assert json.loads((run_folder / "summary.json").read_text()) == summary
    assert summary["rl"]["steps"] == 60
    reward = summary["rl"]["metrics"]["reward/mean"]
    assert (reward["first"], reward["last"]) == (rewards[0], rewards[-1])
    assert reward["last_5_mean"] == pytest.approx(sum(rewards[-5:]) / 5)
    assert summary["rl"]["metrics"]["drift/abs_max"]["max"] == max(line.get("drift/abs_max", 0) for line in lines)
    assert summary["rl"]["seconds"]["step"] == pytest.approx(60 * 1.03)
    assert list(summary["rl"]["seconds"]) == ["rollout", "reward", "log_probs", "update", "sync", "step"]
    assert "pass@32" in capsys.readouterr().out


def test_the_table_has_every_row_of_a_whole_run(run_folder: Path) -> None:
    text = shown(write_summary(run_folder, console=False))
    for row in ("SFT loss", "reward", "pass@1 ", "pass@32", "greedy accuracy", "response tokens", "entropy", "KL to",
                "drift", "SFT tokens/s", "RL tokens/s", "RL seconds"):  # fmt: skip
        assert row in text
    assert "NaN" not in text
    assert "holds no" not in text
    assert "[low, high] is the 95 % interval" in text


def test_a_terminal_of_80_columns_shows_every_number(run_folder: Path) -> None:
    summary = write_summary(run_folder, console=False)
    numbers = re.compile(r"\d[\d.,e-]*")
    assert sorted(numbers.findall(shown(summary, 80))) == sorted(numbers.findall(shown(summary, 160)))


def test_the_picture_is_a_png_and_nothing_is_left_beside(run_folder: Path) -> None:
    write_summary(run_folder, console=False)
    data = (run_folder / "summary.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (1950, 1110)
    assert sorted(path.name for path in run_folder.iterdir()) == [
        "evaluations.json", "metrics.jsonl", "summary.json", "summary.png",
    ]  # fmt: skip


def test_an_empty_folder_says_that_it_is_empty(tmp_path: Path) -> None:
    summary = write_summary(tmp_path, console=False)
    assert summary == {}
    assert "The run's folder holds no RL step and no evaluation." in " ".join(shown(summary).split())
    assert (tmp_path / "summary.png").exists()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"reward/mean": 0.5},
        {"reward/mean": math.nan, "drift/abs_mean": math.inf},
        {"drift/abs_mean": 0.0, "drift/abs_p99": 0.0, "drift/abs_max": 0.0},
        {"drift/abs_mean": 0.0, "drift/abs_max": 1e-6, "tokens_per_s/update": 0.0},
        {"drift/abs_max": 1e-6, "tokens_per_s/update": 1.0, "tokens_per_s/rollout": 1e6},
        {"policy/entropy": 0.0, "kl/reference_k1": -0.1, "seconds/other": 1.0},
    ],
)
@pytest.mark.parametrize("steps", [1, 20])
def test_partial_metrics_are_no_error(tmp_path: Path, values: dict[str, float], steps: int) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        for step in range(steps):
            metrics.write("rl", step, values)
    summary = write_summary(tmp_path, console=False)
    finite = {key for key, value in values.items() if math.isfinite(value) and not key.startswith(("sec", "tok"))}
    assert set(summary["rl"]["metrics"]) == finite
    assert summary["rl"]["nonfinite"] == {key: steps for key, value in values.items() if not math.isfinite(value)}
    text = shown(summary)
    assert ("NaN or infinite" in text) == bool(summary["rl"]["nonfinite"])
    assert ("drift, |Δ log-prob|" in text) == ("drift/abs_mean" in finite)
    assert (tmp_path / "summary.png").stat().st_size > 10_000


def test_sft_only_with_one_evaluation(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as metrics:
        metrics.write("sft", 1, {"sft/loss": 2.5})
    before = {"ks": [1, 4], "pass_at_k": [0.25, 0.5], "low": [0.1, 0.4], "high": [0.3, 0.6]}
    (tmp_path / "evaluations.json").write_text(json.dumps({"before": before}))
    summary = write_summary(tmp_path, console=False)
    assert "rl" not in summary
    text = shown(summary)
    assert "pass@4" in text
    assert "greedy" not in text
    assert "The run's folder holds no RL step." in text


def test_a_torn_last_line_is_left_out(run_folder: Path) -> None:
    path = run_folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert write_summary(run_folder, console=False)["rl"]["steps"] == 59


def test_a_missing_folder_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        write_summary(tmp_path / "none")
    (tmp_path / "evaluations.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"evaluations\.json"):
        write_summary(tmp_path)

"""A run that was killed and resumed is the unbroken run, bit for bit."""

import json
from pathlib import Path

import pytest

from megarl.observe.metrics import reproducible
from tests import runs
from tests.forked_runs import started, train
from tests.runs import metrics, reached, wait_until

pytestmark = pytest.mark.parallel

LAYOUTS = {
    "world size 1": [],
    "dp2": ["parallel.world_size=2"],
    "tp2": ["parallel.world_size=2", "parallel.tensor=2"],
    "truncated sampling": ["rollout.top_p=0.9", "rollout.top_k=5"],
    "pp2": ["parallel.world_size=2", "parallel.pipeline=2"],
    "pp2 with a critic": [
        "parallel.world_size=2",
        "parallel.pipeline=2",
        "rl.objective.name=ppo",
        "rl.advantage=gae",
        "rl.critic.warmup_steps=2",
        "rl.kl.coefficient=0.01",
        "rl.kl.placement=reward",
        "rl.kl.target=0.01",
        "rl.kl.horizon=100",
    ],
}
# Their unbroken run is a user's command, in interpreters with other hash seeds than the resumed run's.
BY_COMMAND = {"world size 1", "dp2"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_resumed_run_equals_the_unbroken_one(layout: str, tmp_path: Path) -> None:
    """Killed with -9 at step 5 or later, resumed from step 4: more than the next ten steps are the same bits."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finished = (runs.train if layout in BY_COMMAND else train)(f"output_dir={whole}", *LAYOUTS[layout])
    assert finished.returncode == 0, finished.stderr
    with started(f"output_dir={broken}", *LAYOUTS[layout]) as run:
        wait_until(lambda: reached(broken, "rl", 5), run)
        run.kill()
    killed_at = metrics(broken)[-1]["step"]
    assert killed_at < 16, "the run was over before it was killed"
    resumed = train(f"output_dir={broken}", *LAYOUTS[layout])
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed from {broken}/checkpoints/1-rl-" in resumed.stdout
    assert [reproducible(line) for line in metrics(broken)] == [reproducible(line) for line in metrics(whole)]
    for name in ("model/model.safetensors", "reference/model.safetensors", "samples.jsonl", "evaluations.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


def test_resume_in_the_warm_start(tmp_path: Path) -> None:
    """Likewise where the run is killed during SFT."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    short = ["sft.steps=40", "checkpoint.sft_every=10", "rl.steps=2"]
    assert train(f"output_dir={whole}", *short).returncode == 0
    with started(f"output_dir={broken}", *short) as run:
        wait_until(lambda: reached(broken, "sft", 15), run)
        run.kill()
    resumed = train(f"output_dir={broken}", *short)
    assert "resumed from" in resumed.stdout, resumed.stderr
    assert [reproducible(line) for line in metrics(broken)] == [reproducible(line) for line in metrics(whole)]
    assert (broken / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()


def test_a_resumed_run_keeps_the_raised_clip_and_the_selection(tmp_path: Path) -> None:
    """Resumed from a checkpoint whose clip has risen already, it clips and selects as the unbroken run does."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    settings = [
        "rl.updates_per_step=2",
        "rl.objective.name=clip_cov",
        "rl.objective.cov_share=0.1",
        "rl.objective.cov_low=0.001",
        "rl.objective.clip_high=0.2",
        "rl.entropy.alarm_share=1",
        "rl.entropy.alarm_action=raise_clip",
        "rl.entropy.alarm_clip_max=0.25",
    ]
    finished = train(f"output_dir={whole}", *settings)
    assert finished.returncode == 0, finished.stderr
    clips = {line["step"]: line["policy/clip_high"] for line in metrics(whole) if line["phase"] == "rl"}
    assert clips[1] == clips[6] == 0.2 < clips[9], "the alarm must raise it before the checkpoint of step 8"
    assert "rl.objective.clip_high is raised to 0.22" in finished.stdout
    assert sorted(clips.values()) == list(clips.values())
    assert max(clips.values()) <= 0.25
    with started(f"output_dir={broken}", *settings) as run:
        wait_until(lambda: reached(broken, "rl", 9), run)
        run.kill()
    resumed = train(f"output_dir={broken}", *settings)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed from {broken}/checkpoints/1-rl-" in resumed.stdout
    assert [reproducible(line) for line in metrics(broken)] == [reproducible(line) for line in metrics(whole)]
    assert (broken / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()


def test_a_finished_run_is_only_summarised(tmp_path: Path) -> None:
    """The same command once more trains nothing, and says so."""
    folder = tmp_path / "run"
    assert train(f"output_dir={folder}").returncode == 0
    before = (folder / "metrics.jsonl").read_bytes()
    again = train(f"output_dir={folder}")
    assert again.returncode == 0, again.stderr
    assert "is finished" in again.stdout
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """The place in the data would be a place in other data; with the file as it was the run goes on."""
    file, folder = tmp_path / "sums.jsonl", tmp_path / "run"
    rows = [json.dumps({"prompt": f"1+{number}=", "answer": str(1 + number)}) for number in range(20)]
    own = ["data.source=file", "data.options=null", f"data.path={file}"]
    keys = [f"output_dir={folder}", *own, "sft.steps=0", "rl.steps=2", "evaluate.samples_per_prompt=0"]
    file.write_text("\n".join(rows))
    first = train(*keys)
    assert first.returncode == 0, first.stderr
    # a training row, and its answer alone
    file.write_text("\n".join([rows[0].replace('"1"', '"2"'), *rows[1:]]))
    refused = train(*keys)
    assert refused.returncode == 2
    (told,) = refused.stderr.splitlines()
    assert told.startswith("megarl: error: data.path=") and " holds other rows than when the run in output_dir=" in told
    file.write_text("\n".join(rows))
    again = train(*keys)
    assert again.returncode == 0, again.stderr
    assert f"resumed from {folder}" in again.stdout

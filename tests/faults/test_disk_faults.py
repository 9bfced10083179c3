"""Disks that take no more: the error is one sentence, the older checkpoint whole, and the run goes on from it."""

from pathlib import Path

import pytest

from megarl.checkpoint.store import CheckpointStore
from tests.faults.planted import noting_syncs, with_largest_file
from tests.forked_runs import train

pytestmark = pytest.mark.parallel

SHORT = ("sft.steps=1", "rl.steps=3", "checkpoint.every=1", "evaluate.samples_per_prompt=0")
CASES = {
    "alone": [],
    "in the background": ["checkpoint.background=true"],
    # one of which writes all that is large
    "two ranks": ["parallel.world_size=2"],
}


@pytest.mark.parametrize("case", CASES)
def test_a_full_disk(case: str, tmp_path: Path) -> None:
    """Weights alone fit into the largest file allowed, as one file; of weights and moments not even the half does."""
    folder = tmp_path / "run"
    settings = [f"output_dir={folder}", *SHORT, *CASES[case]]
    weights = Path("tests/data/base/model.safetensors").stat().st_size
    full = train(*settings, start=with_largest_file, more=(weights * 5 // 4,))
    assert full.returncode == 2, full.stderr
    errors = [line for line in full.stderr.splitlines() if line.startswith("megarl: error: ")]
    assert len(errors) == 1, full.stderr
    assert f"output_dir={folder} did not take a checkpoint (" in errors[0] and "File too large" in errors[0]
    found = CheckpointStore(folder / "checkpoints", keep=2).newest()
    assert found is not None and found[0].name == "1-rl-00000000"
    resumed = train(*settings)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resumed from {folder}/checkpoints/1-rl-00000000" in resumed.stdout


def test_a_checkpoint_is_on_the_disk_after_the_lines_of_its_steps(tmp_path: Path) -> None:
    """Else a node that loses its power leaves a checkpoint whose steps are in no log."""
    log = tmp_path / "log"
    run = train(f"output_dir={tmp_path / 'run'}", *SHORT, start=noting_syncs, more=(str(log),))
    assert run.returncode == 0, run.stderr
    *saves, _ = log.read_text().split("renamed .writing\n")
    # the start of RL, three steps but the last one's, and the end
    assert len(saves) == 4
    for lines in saves:
        assert "synced metrics.jsonl\n" in lines and "synced samples.jsonl\n" in lines
        assert lines.index("synced metrics.jsonl") < lines.index("synced .manifest.json")


SMALL_FILES = {
    "run.json": (2_000, []),
    # longer than the other files before the first checkpoint
    "a step's metrics and samples": (20_000, ["sft.steps=200"]),
}


@pytest.mark.parametrize("what", SMALL_FILES)
def test_a_disk_that_is_full_for_small_files(what: str, tmp_path: Path) -> None:
    """The last line of the logs, which the disk does not take either, hides nothing."""
    limit, more = SMALL_FILES[what]
    full = train(f"output_dir={tmp_path / 'run'}", *SHORT, *more, start=with_largest_file, more=(limit,))
    assert full.returncode == 2, full.stderr
    assert f"output_dir={tmp_path / 'run'} did not take {what} (File too large); " in full.stderr.splitlines()[-1]


def test_a_folder_that_cannot_be_written_any_more(tmp_path: Path) -> None:
    """What stands where checkpoints should be is no folder, as after a mount that went away."""
    folder = tmp_path / "run"
    settings = [f"output_dir={folder}", *SHORT]
    assert train(*settings).returncode == 0
    (folder / "checkpoints").rename(folder / "elsewhere")
    (folder / "checkpoints").touch()
    again = train(*settings)
    assert again.returncode == 2, again.stderr
    assert "did not take a checkpoint (" in again.stderr.splitlines()[-1]
    assert CheckpointStore(folder / "elsewhere", keep=2).newest() is not None

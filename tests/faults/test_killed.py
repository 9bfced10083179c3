"""Runs that are killed with -9 again and again, at each phase and at ten points of a save, are the unbroken run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from megarl.observe.metrics import reproducible
from tests.engines.simulated import simulated_server
from tests.faults.planted import SAVE_EVENTS, counting_saves, killed_in_phase, killed_in_save
from tests.forked_runs import TIMEOUT_S, started, train
from tests.runs import metrics, wait_until

pytestmark = [pytest.mark.parallel, pytest.mark.resume]

SHORT = (
    "sft.steps=1",
    "rl.steps=8",
    "checkpoint.every=1",
    "evaluate.samples_per_prompt=0",
    "rollout.max_new_tokens=8",
)
TWO = "parallel.world_size=2"
SHARED = (TWO, "parallel.distributed_optimizer=true")
BACKGROUND = "checkpoint.background=true"
AHEAD = ("rollout.engine=vllm", "rl.asynchrony.mode=one_step_off")
"""At a server that stays when the trainer is killed; its responses of so few tokens are a real model's."""
LAYOUTS = {
    "world size 1": [],
    "world size 1, in the background": [BACKGROUND, "checkpoint.hf=true"],
    "tp2": [TWO, "parallel.tensor=2"],
    "pp2": [TWO, "parallel.pipeline=2"],
    "dp2 with the distributed optimizer": [*SHARED],
    "dp2, in the background": [*SHARED, BACKGROUND],
    "one step off": [*AHEAD],
    "one step off, in the background": [*AHEAD, BACKGROUND],
}
PHASES = [("rollout", 4), ("reward", 1), ("log_probs", 1), ("update", 1), ("sync", 1)]
"""In which a run is killed, the nth of its name: when two checkpoints are whole, then in the first after a resume."""
PHASES_AHEAD = [("generation_wait", 7), *PHASES[1:]]
"""Responses are waited for twice a step: before it, and before its weights go to the server."""
SAVE_POINTS = 10


@pytest.fixture
def served(layout: str) -> Iterator[list[str]]:
    """Where a run finds its server, if it needs one."""
    if AHEAD[0] not in LAYOUTS[layout]:
        yield []
        return
    with simulated_server(token_ms=1) as url:
        yield [f"engine.urls=[{url}]"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_at_every_point(layout: str, served: list[str], tmp_path: Path) -> None:
    """One run is killed at all of them in turn, each time resumed from its newest checkpoint that is whole."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    settings = [*SHORT, *LAYOUTS[layout], *served]
    finished = train(f"output_dir={whole}", *settings, start=counting_saves, more=(str(whole),))
    assert finished.returncode == 0, finished.stderr
    ranks = 2 if TWO in settings else 1

    def killed(start, *more: object) -> None:  # type: ignore[no-untyped-def]
        with started(f"output_dir={broken}", *settings, start=start, more=more) as run:
            wait_until(lambda: any(rank.exitcode is not None for rank in run.ranks), _Patient(run), TIMEOUT_S)
            assert -9 in [rank.exitcode for rank in run.ranks], run.stdout.read()

    for place, (phase, number) in enumerate(PHASES_AHEAD if AHEAD[0] in settings else PHASES):
        killed(killed_in_phase, phase, number, place % ranks)
    # the first save after a resume has moments, and one before it goes
    events = int((whole / SAVE_EVENTS).read_text().splitlines()[4])
    assert events > 2 * SAVE_POINTS
    for point in range(SAVE_POINTS):
        killed(killed_in_save, str(broken), 1, 1 + point * (events - 2) // (SAVE_POINTS - 1))
    resumed = train(f"output_dir={broken}", *settings)
    assert resumed.returncode == 0, resumed.stderr
    assert [reproducible(line) for line in metrics(broken)] == [reproducible(line) for line in metrics(whole)]
    for name in ("model/model.safetensors", "reference/model.safetensors", "samples.jsonl"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


class _Patient:
    """A run whose end is what is waited for."""

    def __init__(self, run) -> None:  # type: ignore[no-untyped-def]
        self._run = run

    def poll(self) -> None:
        return None

    @property
    def stdout(self):  # type: ignore[no-untyped-def]
        return self._run.stdout

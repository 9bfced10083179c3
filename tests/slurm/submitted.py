"""A run that a test submits by the command line, and looks at while it is under way."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from megarl.config.yaml_text import format_value
from megarl.observe.files import write_atomic
from megarl.observe.metrics import reproducible
from tests.runs import RECIPE, REPOSITORY, TINY, environment, metrics, reached
from tests.slurm.cluster import Cluster
from tests.slurm.switched_reward import SWITCHES

# a step and a save must end within it, on a machine that does other things too
GRACE = "checkpoint.stop_grace_s=100"
PROBLEMS, SAMPLES = 8, 4
"""Of an evaluation; a step of RL has half as many problems."""
STEPS = 8
SHORT = (f"rl.steps={STEPS}", f"data.eval_prompts={PROBLEMS}", f"evaluate.samples_per_prompt={SAMPLES}")
SHORT += (f"rl.prompts_per_step={PROBLEMS // 2}", f"rl.samples_per_prompt={SAMPLES}")
_ENDS = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


class Submitted:
    """One submission of the tiny run.

    Attributes:
        run: its output folder.
        switches: see tests/slurm/switched_reward.py.
        jobs: ids.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder, self.run, self.switches = cluster, folder, folder / "run", folder / "switches"
        self.switches.mkdir()
        self.jobs: list[str] = []

    @property
    def job(self) -> str:
        return self.jobs[0]

    def submit(self, *arguments: str, nodes: int = 2, **profile: Any) -> str:
        """Runs `megarl submit`; what it printed."""
        held = {
            "templates": str(REPOSITORY / "slurm"),
            "logs": str(self.folder / "logs"),
            "nodes": nodes,
            "time_limit": "1:00:00",
            "environment": {SWITCHES: str(self.switches), "OMP_NUM_THREADS": "1"},
            "health": {"free_gib": 0.0},
            **profile,
        }
        (self.folder / "profile.yaml").write_text(format_value(held))
        overrides = [f"output_dir={self.run}", f"parallel.world_size={nodes}", GRACE, *TINY, *SHORT]
        overrides += ["reward.name=tests.slurm.switched_reward.switched"]
        printed = self.command("submit", RECIPE, "--profile", str(self.folder / "profile.yaml"), *overrides, *arguments)
        self.jobs = printed.partition(":")[0].split()[1:]
        return printed

    def command(self, *words: str) -> str:
        """Runs `megarl` with these words; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "megarl", *words],
            cwd=REPOSITORY,
            env={**environment(), "SLURM_CONF": self.cluster.environment["SLURM_CONF"], "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def crash(self) -> None:
        """Has the reward fail."""
        (self.switches / "crash").touch()

    def hold(self, step: int, nodes: int = 2) -> None:
        """Has the run wait in this step of RL for a signal, or for `let_go`.

        Args:
            step: counted from 1, in an attempt that began with the run.
            nodes: processes of one node each, which share the rewards.
        """
        # an evaluation has a greedy response to each problem too
        calls = (PROBLEMS * (SAMPLES + 1) + (step - 1) * PROBLEMS // 2 * SAMPLES) // nodes
        write_atomic(self.switches / "hold", str(calls).encode())

    def let_go(self) -> None:
        """Has the run go on."""
        (self.switches / "hold").unlink()

    def wait_for(self, state: str, job: str | None = None) -> None:
        """Waits for a state of a job, its first where none is named."""
        seen = [""]

        def is_over() -> bool:
            seen.append(self.cluster.state(job or self.job))
            return seen[-1] in {state, *_ENDS}

        try:
            self.cluster.wait_until(is_over)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None
        assert seen[-1] == state, self.output()

    def wait_for_step(self, step: int) -> None:
        """Waits for a step of RL."""
        self.cluster.wait_until(lambda: reached(self.run, "rl", step) or self.cluster.state(self.job) in _ENDS)
        assert reached(self.run, "rl", step), self.output()

    def output(self) -> str:
        """What the jobs printed so far."""
        return "\n".join(path.read_text() for path in sorted((self.folder / "logs").glob("*.out")))

    def attempts(self) -> list[dict[str, Any]]:
        """The attempts that ended."""
        file = self.run / "slurm" / "attempts.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def numbers(self) -> list[dict[str, Any]]:
        """The metrics that two equal runs share."""
        return [reproducible(line) for line in metrics(self.run)]

    def weights(self) -> bytes:
        """The final policy."""
        return (self.run / "model" / "model.safetensors").read_bytes()

    def equals(self, other: "Submitted") -> bool:
        """Whether both runs came to the same end by the same numbers, bit for bit."""
        return self.numbers() == other.numbers() and self.weights() == other.weights()

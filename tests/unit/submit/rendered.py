"""Renders jobs for tests, as `megarl submit` does."""

from functools import cache
from pathlib import Path

from megarl.config.yaml_text import format_value
from megarl.submit.job import build_job
from megarl.submit.load import load_profile
from megarl.submit.profile import Profile
from megarl.submit.render import render
from megarl.submit.tasks import Task, tasks
from tests.runs import RECIPE, REPOSITORY

TEMPLATES = REPOSITORY / "slurm"
SERVED = ("rollout.engine=vllm", "sync.transport=broadcast")
LAYOUTS: dict[str, tuple[str, ...]] = {"colocated": (), "split": SERVED, "hetjob": SERVED}
"""Layout -> overrides that a recipe needs for it."""


def loaded(folder: Path, **profile: object) -> Profile:
    """A profile by way of a file in `folder`."""
    file = folder / "profile.yaml"
    file.write_text(format_value(profile))
    return load_profile(file)


@cache
def demo_tasks(overrides: tuple[str, ...], seeds: str | None = None) -> list[Task]:
    """Runs of the demo's recipe."""
    return tasks(str(REPOSITORY / RECIPE), overrides, seeds, ())


def script(folder: Path, overrides: tuple[str, ...] = (), seeds: str | None = None, **profile: object) -> str:
    """The script of the demo's recipe under such a profile."""
    held = loaded(folder, **profile)
    runs = demo_tasks((*LAYOUTS[held.layout], *overrides), seeds)
    return render(build_job(str(REPOSITORY / RECIPE), runs, held, "now", {}), held, TEMPLATES)


def profile_script(path: Path) -> str:
    """The script of the demo's recipe, of as many processes, under a profile's file."""
    profile = load_profile(path)
    world_size = profile.nodes * profile.tasks_per_node
    overrides = (f"parallel.world_size={world_size}", "rl.micro_batch_size=1", "sft.micro_batch_size=1")
    runs = demo_tasks((*LAYOUTS[profile.layout], *overrides))
    return render(build_job(str(REPOSITORY / RECIPE), runs, profile, "now", {}), profile, TEMPLATES)

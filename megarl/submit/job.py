"""What a template renders: one job's options, runs and commands, checked against each other."""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megarl.config.keys import keys
from megarl.config.refusal import in_words
from megarl.config.schema import Recipe
from megarl.config.yaml_text import format_value
from megarl.platform.child import python_path
from megarl.submit.options import engine_options, options
from megarl.submit.profile import Profile, ProfileError
from megarl.submit.shell import Directive, job_name
from megarl.submit.tasks import Task

_OF_OWN_SERVERS = ("replicas", "tensor", "quantization", "kv_cache_gib", "python", "arguments")
"""Keys of `engine` that `megarl serve` reads, and that a trainer beside running servers refuses."""


@dataclass(frozen=True)
class Run:
    """One run of a job, as a script starts it.

    Attributes:
        folder: its output folder.
        trainer: `key=value` arguments of the trainer.
        servers: those of the servers.
    """

    folder: str
    trainer: tuple[str, ...]
    servers: tuple[str, ...]


@dataclass(frozen=True)
class Staged:
    """A file or folder that every node copies: where it lies, and where the copy goes."""

    source: str
    target: str


@dataclass(frozen=True)
class Group:
    """Nodes that one srun reaches.

    Attributes:
        where: the option of srun that names them.
        nodes: how many.
        gpus: GPUs that each must have.
    """

    where: Directive
    nodes: int
    gpus: int


@dataclass(frozen=True)
class Job:
    """Everything that a template reads beside the profile.

    Attributes:
        name: the job's.
        options: options of sbatch, in order.
        engine_options: those of the second component of a heterogeneous job.
        folder: working folder, absolute.
        recipe: path of the recipe's file.
        runs: one, or those of an array.
        staged: what the nodes copy.
        submission: what the attempts of these jobs have in common, chained ones included.
        python: interpreter of the tasks.
        host_python: interpreter of the script's own helpers.
        python_path: PYTHONPATH of both, for this very package.
        token_variable: environment variable with the servers' token.
        groups: all nodes, those of the trainer in the first.
        servers_where: the option of srun for the servers' nodes.
    """

    name: Directive
    options: tuple[Directive, ...]
    engine_options: tuple[Directive, ...]
    folder: str
    recipe: str
    runs: tuple[Run, ...]
    staged: tuple[Staged, ...]
    submission: str
    python: str
    host_python: str
    python_path: str
    token_variable: str
    groups: tuple[Group, ...]
    servers_where: Directive

    @property
    def is_array(self) -> bool:
        """Whether the job is an array."""
        return len(self.runs) > 1


def build_job(
    recipe_path: str, tasks: Sequence[Task], profile: Profile, submission: str, environment: Mapping[str, str]
) -> Job:
    """The job that runs these tasks under this profile.

    Args:
        recipe_path: the recipe's file.
        tasks: one, or several for an array.
        profile: where and how.
        submission: see `Job`.
        environment: of the submitting process, for PYTHONPATH.

    Raises:
        ProfileError: profile and recipe do not fit.
    """
    recipe = tasks[0].recipe
    for task in tasks:
        _check_fit(task.recipe, profile)
    if len(tasks) > 1 and profile.layout == "hetjob":
        raise ProfileError(
            "layout=hetjob cannot be an array, which SLURM does not allow; submit each run, or use split."
        )
    # a sweep may be over what is staged: each run has the copy of its own
    staged = [_staged(task.recipe, profile) for task in tasks]
    # paths are named relative to where the recipe's own are: the folder that the job is submitted from
    folder = Path.cwd()
    return Job(
        name=job_name(recipe.name),
        options=options(profile, job_name(recipe.name), len(tasks)),
        engine_options=engine_options(profile) if profile.layout == "hetjob" else (),
        folder=str(folder),
        recipe=recipe_path,
        runs=tuple(_run(task, profile, own) for task, own in zip(tasks, staged, strict=True)),
        staged=tuple(dict.fromkeys(copy for own in staged for copy in own.values())),
        submission=submission,
        python=profile.python or sys.executable,
        host_python=sys.executable,
        python_path=python_path(environment),
        token_variable=recipe.engine.token_variable,
        groups=_groups(profile),
        servers_where=Directive("--het-group=1" if profile.layout == "hetjob" else f"--relative={profile.nodes}"),
    )


def _groups(profile: Profile) -> tuple[Group, ...]:
    own = (profile.nodes, profile.gpus_per_node)
    servers = (profile.engine.nodes, profile.engine.gpus_per_node)
    if profile.layout == "colocated":
        return (Group(Directive("--relative=0"), *own),)
    if profile.layout == "split":
        return (Group(Directive("--relative=0"), *own), Group(Directive(f"--relative={profile.nodes}"), *servers))
    return (Group(Directive("--het-group=0"), *own), Group(Directive("--het-group=1"), *servers))


def _check_fit(recipe: Recipe, profile: Profile) -> None:
    world_size = profile.nodes * profile.tasks_per_node
    if recipe.parallel.world_size != world_size:
        raise ProfileError(
            f"parallel.world_size={recipe.parallel.world_size}, and the profile has nodes={profile.nodes} x "
            f"tasks_per_node={profile.tasks_per_node} = {world_size} trainer processes; make them agree."
        )
    if recipe.checkpoint.stop_grace_s > profile.requeue.signal_before_s:
        raise ProfileError(
            f"checkpoint.stop_grace_s={recipe.checkpoint.stop_grace_s:g} is longer than requeue.signal_before_s="
            f"{profile.requeue.signal_before_s}, so that the time limit may end the save; make the latter longer."
        )
    if profile.layout == "colocated":
        return
    engine = recipe.engine
    if not engine.token_variable.isidentifier() or not engine.token_variable.isascii():
        raise ProfileError(
            f"engine.token_variable={in_words(engine.token_variable)} is no name of a variable; use letters, digits, _."
        )
    if recipe.rollout.engine == "embedded":
        raise ProfileError(
            f"layout={profile.layout} has nodes for servers, and rollout.engine=embedded has none; "
            "set rollout.engine=vllm, or layout=colocated."
        )
    if engine.urls:
        raise ProfileError(
            f"layout={profile.layout} starts servers, and engine.urls={in_words(engine.urls)} names running ones; "
            "leave engine.urls out, or set layout=colocated."
        )
    if recipe.sync.transport in ("shared_memory", "cuda_ipc"):
        raise ProfileError(
            f"sync.transport={recipe.sync.transport} reaches no other node, and layout={profile.layout} has "
            "the servers there; set sync.transport=broadcast or disk."
        )
    if engine.quantization != "none":
        raise ProfileError(
            f"engine.quantization={engine.quantization} is of servers that the trainer starts itself; leave it out "
            "with layout=split and hetjob."
        )
    per_server = profile.engine.gpus_per_node // profile.engine.servers_per_node
    if 0 < per_server < engine.tensor:
        raise ProfileError(
            f"engine.tensor={engine.tensor} is more than the {per_server} GPUs of a server, of which the profile has "
            f"engine.servers_per_node={profile.engine.servers_per_node} on engine.gpus_per_node="
            f"{profile.engine.gpus_per_node}; give a server more, or lower engine.tensor."
        )
    servers = profile.engine.nodes * profile.engine.servers_per_node
    if engine.replicas not in (1, servers):
        raise ProfileError(
            f"engine.replicas={engine.replicas}, and the profile has engine.nodes={profile.engine.nodes} x "
            f"engine.servers_per_node={profile.engine.servers_per_node} = {servers} servers; leave engine.replicas out."
        )


_REMOTE = "engine.allow_remote=true"
"""Trainer and servers are on different nodes, and have the token that this takes."""


def _run(task: Task, profile: Profile, staged: Mapping[str, Staged]) -> Run:
    local = tuple(f"{key}={format_value(copy.target)}" for key, copy in staged.items())
    trainer = servers = (*task.overrides, *local)
    if profile.layout != "colocated":
        plain = type(task.recipe.engine)()
        given = [name for name in _OF_OWN_SERVERS if getattr(task.recipe.engine, name) != getattr(plain, name)]
        trainer += tuple(f"engine.{name}={format_value(getattr(plain, name))}" for name in given)
        trainer += (_REMOTE,)
        servers += (_REMOTE,)
    return Run(task.recipe.output_dir, trainer, servers)


def _staged(recipe: Recipe, profile: Profile) -> dict[str, Staged]:
    """Recipe key -> what is copied for it."""
    found = {}
    for dotted in profile.staging.keys:
        if dotted not in keys():
            raise ProfileError(f"staging.keys={dotted} is not a recipe key; name one that holds a path.")
        value: Any = recipe
        for name in dotted.split("."):
            value = getattr(value, name)
        if not isinstance(value, str) or not os.path.exists(value):
            raise ProfileError(
                f"staging.keys={dotted} is {in_words(value)} in the recipe, which is no path; leave it out."
            )
        source = Path(value).resolve()
        # the same for every attempt: the recipe of a resumed run names the same path
        folder = Path(str(profile.staging.folder)) / f"megarl-{hashlib.sha256(bytes(source)).hexdigest()[:16]}"
        found[dotted] = Staged(str(source), str(folder / source.name))
    return found

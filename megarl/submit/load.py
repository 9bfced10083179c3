"""From a profile's file to a checked profile."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from megarl.config.build import build, check_values
from megarl.config.check_keys import check_layer
from megarl.config.compose import Layer, override_layer
from megarl.config.provenance import sources
from megarl.config.refusal import in_words
from megarl.config.yaml_text import parse_mapping
from megarl.submit.profile import Profile, ProfileError
from megarl.submit.shell import directive
from megarl.submit.time_limit import seconds_of

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=.+)?")
_OF_BASH = ("BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID")
"""Variables that bash lets nobody set."""
_OWNED = (
    *("job-name", "output", "error", "open-mode", "comment", "requeue", "no-requeue", "signal", "time", "array"),
    *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "mem", "partition", "account", "qos"),
    *("reservation", "constraint", "dependency", "wrap", "chdir", "kill-on-invalid-dep", "exclude", "parsable", "wait"),
)
"""Options of sbatch that the profile's other keys, or megarl, decide."""
_WHOLE = ("gpus",)
"""Options of its own with which one of those begins."""


def load_profile(path: Path, settings: Sequence[str] = ()) -> Profile:
    """Reads, merges and checks a profile.

    Args:
        path: its file, YAML.
        settings: `key=value` texts that win over the file.

    Raises:
        UserError: the file, a key, a value or a combination of values cannot be right.
    """
    layers = [Layer(str(path), parse_mapping(_read(path), str(path))), *(override_layer(text) for text in settings)]
    for layer in layers:
        check_layer(layer, Profile)
    try:
        merged: Any = OmegaConf.merge(
            OmegaConf.structured(Profile), *(OmegaConf.create(layer.tree) for layer in layers)
        )
        tree: Any = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, TypeError, RecursionError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise ProfileError(f"{path} cannot be read as a profile: {reason}; mend it there.") from error
    origin = sources(tree, layers)
    check_values(tree, origin, Profile)
    profile: Profile = build(Profile, tree)
    check(profile)
    return profile


def check(profile: Profile) -> None:
    """Refuses values that no script can hold, and keys that contradict each other.

    Raises:
        ProfileError: naming the key.
    """
    for name in ("memory", "time_limit", "partition", "account", "qos", "reservation", "constraint", "logs"):
        _check_directive(name, getattr(profile, name))
    for name in ("memory", "partition", "constraint"):
        _check_directive(f"engine.{name}", getattr(profile.engine, name))
    _check_time(profile)
    _check_gpus(profile)
    for name, value in (
        *(("python", profile.python), ("container.image", profile.container.image)),
        *((f"network.{name}", value) for name, value in asdict(profile.network).items()),
    ):
        if value == "":
            raise ProfileError(f'{name}="" is empty, and so names nothing; give a value, or null.')
    for option in profile.sbatch:
        directive("sbatch", option)
        name = option.removeprefix("--").partition("=")[0]
        if not _OPTION.fullmatch(option):
            raise ProfileError(f"sbatch={in_words(option)} is no option of sbatch; write it as --name=value.")
        # sbatch takes an option that is cut short for the one that begins so
        if name not in _WHOLE and any(owned.startswith(name) for owned in _OWNED):
            raise ProfileError(f"sbatch={in_words(option)} sets what another key or megarl sets; leave it out.")
    for variable in profile.environment:
        if not _VARIABLE.fullmatch(variable):
            raise ProfileError(f"environment.{variable} is no name of a variable; use letters, digits and _.")
        if variable in _OF_BASH:
            raise ProfileError(f"environment.{variable} is a variable that bash lets no script set; leave it out.")
    if profile.container.runtime != "none" and not profile.container.image:
        raise ProfileError(
            f"container.runtime={profile.container.runtime} has no container.image; name one, or set runtime=none."
        )
    if profile.container.runtime != "none" and profile.python is None:
        raise ProfileError(
            f"container.runtime={profile.container.runtime} has no python; name the interpreter in the container."
        )
    folder = profile.staging.folder
    if folder is not None and not Path(folder).is_absolute():
        raise ProfileError(
            f"staging.folder={in_words(folder)} is relative, so in the folder that all nodes share; give an absolute "
            "path on the nodes' own disks, such as /tmp."
        )
    if profile.staging.keys and not folder:
        raise ProfileError(
            f"staging.keys={in_words(profile.staging.keys)} has no staging.folder to copy to; name one of the nodes'."
        )


def _check_time(profile: Profile) -> None:
    limit_s = seconds_of(profile.time_limit)
    if limit_s is None:
        raise ProfileError(
            f"time_limit={in_words(profile.time_limit)} is no time as SLURM writes them; write it like "
            '"24:00:00", hours:minutes:seconds, or "2-12", days-hours.'
        )
    before_s = profile.requeue.signal_before_s
    if before_s >= limit_s:
        raise ProfileError(
            f"requeue.signal_before_s={before_s} leaves nothing of time_limit={in_words(profile.time_limit)}, which is "
            f"{limit_s:g} s, so that the run would be stopped as it starts; give fewer seconds, or a longer time limit."
        )


def _check_gpus(profile: Profile) -> None:
    """A node's GPUs are enough for its processes, each of which has as many as the next."""
    gpus, processes = profile.gpus_per_node, profile.tasks_per_node
    if 0 < gpus < processes:
        raise ProfileError(
            f"gpus_per_node={gpus} leaves some of tasks_per_node={processes} trainer processes without a GPU; give "
            "each its own."
        )
    gpus, servers = profile.engine.gpus_per_node, profile.engine.servers_per_node
    if gpus % servers:
        raise ProfileError(
            f"engine.gpus_per_node={gpus} cannot be shared out evenly by engine.servers_per_node={servers}; give a "
            "multiple of it."
        )


def _check_directive(key: str, value: str | None) -> None:
    if value is not None:
        directive(key, value)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ProfileError(f"The profile {path} cannot be read: {reason}; check the path.") from error

"""The software of a run, as its file and its checkpoints tell it, and what a resumed run has otherwise."""

import functools
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from megarl.rollout.fleet import Fleet

if TYPE_CHECKING:
    from megarl.loop.run import Run

_LIBRARIES = ("megarl", "torch", "megatron-core", "transformers")


@functools.cache
def facts() -> dict[str, Any]:
    """What a checkpoint and a run record about the trainer's software."""
    return {"python": platform.python_version(), "libraries": {name: version(name) for name in _LIBRARIES}}


def engine_facts(run: "Run") -> dict[str, Any]:
    """What a checkpoint records about the engine: its name, and the releases of its servers, none before they are up.

    Off the main rank, which alone knows the servers, they are none.
    """
    if run.recipe.rollout.engine == "embedded":
        return {"name": "embedded", "releases": [version("megarl")]}
    return {"name": run.recipe.rollout.engine, "releases": run.engine.releases if isinstance(run.engine, Fleet) else []}


def note_other_libraries(run: "Run", manifest: Mapping[str, Any]) -> None:
    """Other libraries may give other bits; the run goes on, and says so. Args: manifest: of what it goes on from."""
    before, now = manifest["libraries"], facts()["libraries"]
    changed = [f"{name} {before.get(name)} -> {now[name]}" for name in now if before.get(name) != now[name]]
    if changed:
        run.journal.note(f"libraries have changed since ({', '.join(changed)}): the bits may differ from here on")


def note_other_engine(run: "Run") -> None:
    """Likewise another release of the engine, whose servers must be up."""
    before, now = run.engine_before, engine_facts(run)
    if before["releases"] and now["releases"] and before != now:
        was, is_now = (f"{each['name']} {', '.join(each['releases'])}" for each in (before, now))
        run.journal.note(f"the engine has changed since ({was} -> {is_now}): the bits may differ from here on")

"""Hostile values in every text of profile and recipe: refused, or one word of the script that runs nothing."""

from copy import deepcopy
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from megarl.config.errors import UserError
from megarl.config.keys import Key, keys
from megarl.config.schema import Recipe
from megarl.submit.job import build_job
from megarl.submit.profile import Profile
from megarl.submit.render import render
from megarl.submit.tasks import Task
from tests.unit.submit.hostile import MARK, VALUES
from tests.unit.submit.rendered import LAYOUTS, SERVED, TEMPLATES, demo_tasks, loaded
from tests.unit.submit.stubs import complaints, run_with_stubs

FREE = {
    *("python", "modules", "environment", "health.command", "container.image", "container.mounts"),
    *("network.gloo_interface", "network.nccl_interface", "network.nccl_ib_hca"),
}
"""Keys of a profile that take any text; all others refuse hostile ones."""
NAMES = {path for path in FREE if path == "python" or path.startswith(("container.image", "network."))}
"""Those of them that name one thing, and so are not empty."""
BY_LAYOUT = {"colocated": "pyxis", "split": "apptainer", "hetjob": "pyxis"}
RULED = ("engine.token_variable", "engine.urls")
"""Texts of a recipe that a job of several layouts refuses by rules of its own."""


def texts(schema: type) -> dict[str, Key]:
    """The keys that hold text which no list of choices bounds."""
    found = keys(schema)
    return {
        path: key
        for path, key in found.items()
        if key.choices is None and (key.kind in (str, dict) or (key.kind is list and key.item is str))
    }


def holding(key: Key, value: str) -> Any:
    """The text as that key's value."""
    return {str: value, list: [value], dict: {"HOSTILE": value}}[key.kind]


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """A mapping with this value at a dotted path."""
    for name in reversed(dotted.split(".")):
        value = {name: value}
    return value


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both mappings; where both have a section, that of both."""
    both = {**one, **other}
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict) and isinstance(other[name], dict):
            both[name] = merged(one[name], other[name])
    return both


@pytest.mark.parametrize("dotted", [dotted for dotted in texts(Profile) if dotted != "templates"])
def test_a_text_of_a_profile_is_free_or_refuses_hostile_values(dotted: str, tmp_path: Path) -> None:
    """`templates` is a path that nothing is printed from."""
    for value in VALUES:
        profile = nested(dotted, holding(texts(Profile)[dotted], value))
        # all of its characters may stand in an #SBATCH line, behind the name of an option
        harmless = value == "-rf" and dotted not in ("time_limit", "sbatch", "staging.folder", "staging.keys")
        if (dotted in FREE and (value or dotted not in NAMES)) or harmless:
            loaded(tmp_path, **profile)
        else:
            with pytest.raises(UserError):
                held = loaded(tmp_path, **merged({"staging": {"folder": "/tmp"}}, profile))
                build_job("recipe.yaml", demo_tasks(()), held, "now", {})


def test_a_name_of_a_variable_refuses_hostile_values(tmp_path: Path) -> None:
    for value in VALUES:
        with pytest.raises(UserError, match=r"environment\."):
            loaded(tmp_path, environment={value: "x"})
        task = demo_tasks(SERVED)[0]
        recipe = deepcopy(task.recipe)
        recipe.engine.token_variable = value
        with pytest.raises(UserError, match=r"engine\.token_variable"):
            build_job("recipe.yaml", [Task(recipe, ())], loaded(tmp_path, layout="split"), "now", {})


@cache
def recipe_texts() -> tuple[str, ...]:
    """Every text of a recipe but those with rules of their own."""
    return tuple(path for path in texts(Recipe) if path not in RULED)


def hostile_task(value: str, layout: str, staged: str) -> Task:
    """A run whose recipe has the value in every text, past all checks; and whose arguments are such words too."""
    recipe = deepcopy(demo_tasks(LAYOUTS[layout])[0].recipe)
    words = []
    for dotted in recipe_texts():
        *sections, name = dotted.split(".")
        place: Any = recipe
        for section in sections:
            place = getattr(place, section)
        setattr(place, name, holding(texts(Recipe)[dotted], value))
        words.append(f"{dotted}={value}")
    # a folder is made of it
    recipe.output_dir = f"run{value}"
    recipe.model.init_from = staged
    return Task(recipe, (*words, value))


def hostile_profile(value: str, layout: str, folder: Path) -> Profile:
    """A profile whose every free text is the value."""
    held: dict[str, Any] = {"layout": layout, "staging": {"keys": ["model.init_from"]}}
    for dotted in FREE:
        text = value or "name" if dotted in NAMES else value
        held = merged(held, nested(dotted, holding(texts(Profile)[dotted], text)))
    # names that the script has variables of
    held["environment"] |= dict.fromkeys(("run", "recipe", "attempt", "state"), value)
    held["container"].update(runtime=BY_LAYOUT[layout], image=value or "name")
    held["staging"]["folder"] = f"/{value}"
    held["health"]["command"] = ["true", value]
    return loaded(folder, **held)


def directives(text: str) -> list[str]:
    """What sbatch takes for its options, the job's name left out, which the run's gives."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith("#SBATCH")]
    return [line for line in lines if "--job-name" not in line]


# all layouts print values by the same means, and each has a third of them
@pytest.mark.parametrize(("value", "layout"), list(zip(VALUES, cycle(LAYOUTS), strict=False)))
def test_hostile_values_arrive_and_run_nothing(
    value: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all free texts at once, in the folders' names, in the recipe's path and in PYTHONPATH."""
    place = tmp_path / f"in {value}"
    staged = place / f"model{value}"
    staged.mkdir(parents=True)
    monkeypatch.chdir(place)
    profile = hostile_profile(value, layout, tmp_path)
    task = hostile_task(value, layout, str(staged))
    text = render(build_job(f"recipe{value}", [task], profile, "now", {"PYTHONPATH": value}), profile, TEMPLATES)
    plain = loaded(tmp_path, layout=layout)
    assert directives(text) == directives(
        render(build_job("recipe", demo_tasks(LAYOUTS[layout]), plain, "now", {}), plain, TEMPLATES)
    )
    # words in quotes that would run without them are what shellcheck hints at below that severity
    assert complaints(text, tmp_path, "--severity=error") == ""
    calls = run_with_stubs(text, tmp_path)
    assert all(variable == value for _, _, variable in calls)
    assert [words for name, words, _ in calls if name == "module"] == [["load", value]]
    health, stage, train = (
        [words for name, words, _ in calls if name == "srun" and action in words]
        for action in ("health", "stage", "train")
    )
    assert all(words[-2:] == ["true", value] for words in health)
    assert all(words[-2] == str(staged) and words[-1].startswith(f"/{value}") for words in stage)
    ((*_, action, recipe),) = [words[: words.index("train") + 2] for words in train]
    assert (action, recipe) == ("train", f"recipe{value}")
    given = train[0][train[0].index("train") + 2 :]
    assert given[: len(task.overrides)] == list(task.overrides)
    image = f"--container-image={value or 'name'}" if BY_LAYOUT[layout] == "pyxis" else value or "name"
    assert image in train[0]
    assert not list(tmp_path.rglob(MARK))
    assert (place / f"run{value}" / "slurm" / "attempts.jsonl").exists()

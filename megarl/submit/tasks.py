"""The runs of one job: the recipe as given, or one for each seed and each value of a sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from megarl.config.compose import override_layer
from megarl.config.load import load_recipe
from megarl.config.schema import Recipe
from megarl.config.yaml_text import format_value
from megarl.submit.profile import ProfileError


@dataclass(frozen=True)
class Task:
    """One run.

    Attributes:
        recipe: checked.
        overrides: `key=value` arguments that make it of the recipe's file.
    """

    recipe: Recipe
    overrides: tuple[str, ...]


def tasks(path: str, overrides: Sequence[str], seeds: str | None, sweeps: Sequence[str]) -> list[Task]:
    """Every run of the job, seeds changing last.

    Args:
        path: the recipe's file.
        overrides: `key=value` arguments that all runs share.
        seeds: such as 0,1,2 or 0-2; None for the recipe's own.
        sweeps: `key=[a, b]` arguments; every combination of their values is a run.

    Raises:
        UserError: the recipe is refused with one of them; or two runs have one output folder.
    """
    axes = [_axis(sweep) for sweep in sweeps]
    if seeds is not None:
        axes.append([f"seed={seed}" for seed in _seeds(seeds)])
    made = []
    for chosen in product(*axes):
        arguments = (*overrides, *chosen)
        made.append(Task(load_recipe(path, arguments).recipe, arguments))
    held: dict[str, Task] = {}
    for task in made:
        other = held.setdefault(task.recipe.output_dir, task)
        if other is not task:
            raise ProfileError(
                f"output_dir={task.recipe.output_dir} is the folder of the runs with {_told(other)} and with "
                f"{_told(task)}; put what differs into it, such as runs/${{name}}-seed${{seed}}."
            )
    return made


def _axis(sweep: str) -> list[str]:
    layer = override_layer(sweep)
    name, _, _ = sweep.partition("=")
    node = layer.tree
    for part in name.split("."):
        node = node[part]
    if not isinstance(node, list) or not node:
        raise ProfileError(
            f"--sweep {sweep} gives no list of values; write it like --sweep rl.optimizer.lr=[1e-4,3e-4]."
        )
    return [f"{name}={format_value(value)}" for value in node]


def _seeds(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 24:
            raise ProfileError(f"--seeds {text} is no list of seeds; write it like 0,1,2 or 0-2.")
        if dash and not 0 <= int(last) - int(first) < 1000:
            raise ProfileError(f"--seeds {text} is no range of at most 1000 seeds; write it like 0-2.")
        found += range(int(first), int(last) + 1) if dash else [int(first)]
    return found


def _told(task: Task) -> str:
    return " ".join(task.overrides[-2:]) or "no override"

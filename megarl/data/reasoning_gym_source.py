"""Tasks of the reasoning-gym package, by name."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from megarl.config.data import DataConfig
from megarl.config.errors import RecipeError, UserError
from megarl.config.names import nearest
from megarl.config.refusal import refusal
from megarl.data.options import unknown_option
from megarl.data.problem import Problem
from megarl.data.template import fill_template

_CHUNK = 512
"""Items a dataset object; some tasks prepare all of them when they are made, so no object is endless."""

_REDRAWS = 1000
"""Draws at one index before the task is given up as too small."""

# Found on 0.1.25 by comparing items under several values of PYTHONHASHSEED.
_HASH_ORDERED = (
    "isomorphic_strings",
    "knight_swap",
    "list_functions",
    "polynomial_multiplication",
    "ransom_note",
    "word_ladder",
)


def make_dataset(options: Mapping[str, Any], seed: int, size: int) -> Any:
    """A reasoning-gym dataset of the task `options['task']`, configured by the other options.

    Args:
        options: `data.options` of the recipe.
        seed: in [0, 2**32); item i of most tasks is drawn from seed + i.
        size: number of items.

    Raises:
        UserError: the package is missing.
        RecipeError: the task or an option of it is unknown, or the task refuses its options.
    """
    registered = _registered_tasks()
    task: Any = options.get("task")
    if task not in registered:
        guess = None if task is None else nearest(str(task), registered)
        fix = f"did you mean {guess}?" if guess else "give the name of one, such as chain_sum"
        raise refusal("data.options.task", task, "is no task of reasoning-gym", fix)
    config_class = registered[task][1]
    settings = {name: value for name, value in options.items() if name != "task"}
    known = {field.name for field in fields(config_class)} - {"seed", "size"}
    for name, value in settings.items():
        if name not in known:
            raise unknown_option(name, value, known, f"the task {task}")
    from reasoning_gym import create_dataset

    try:
        return create_dataset(task, seed=seed, size=size, **settings)
    # the tasks check their settings by assert, or not at all
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        reason = f"are refused by the task {task} ({' '.join(str(error).split()) or type(error).__name__})"
        raise refusal("data.options", settings, reason, "mend the option that it names") from error


def _registered_tasks() -> Mapping[str, tuple[type, type]]:
    try:
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "reasoning_gym":
            raise
        raise UserError(
            "data.source=reasoning_gym needs the package reasoning-gym; "
            "run `.venv/bin/pip install -c constraints.txt -e '.[reasoning-gym]'`."
        ) from error
    tasks: Mapping[str, tuple[type, type]] = DATASETS
    return tasks


class ReasoningGymSource:
    """The source. Evaluation problems are the same for every seed; items without a reference answer are skipped."""

    def __init__(self, seed: int, data: DataConfig) -> None:
        """Draws the evaluation problems and one training problem.

        Raises:
            UserError: the package is missing.
            RecipeError: the task or its options cannot be, or the task has too few problems.
        """
        self._seed = seed
        self._data = data
        make_dataset(data.options, seed=0, size=1)
        _check_hash_order(data.options["task"])
        self._chunk = lru_cache(maxsize=16)(self._make_chunk)
        entries = self._evaluation_entries()
        self._kept_out = frozenset(entry["question"] for entry in entries)
        self._evaluation = [self._problem(f"evaluation/{index}", entry) for index, entry in enumerate(entries)]
        self._entry(self._stream("training"), 0)

    def training(self, index: int) -> Problem:
        """The training problem at `index`.

        Raises:
            RecipeError: the task has nearly no problem that is not kept for evaluation.
        """
        return self._problem(f"training/{index}", self._entry(self._stream("training"), index))

    def evaluation(self) -> list[Problem]:
        """The evaluation problems."""
        return list(self._evaluation)

    def demonstration(self, index: int, progress: float) -> tuple[Problem, str]:
        """A problem with its boxed answer, whatever the progress."""
        entry = self._entry(self._stream("demonstration"), index)
        return self._problem(f"demonstration/{index}", entry), f"\\boxed{{{entry['answer']}}}"

    def _stream(self, name: str) -> str:
        return f"{self._seed}/reasoning_gym/{name}"

    def _make_chunk(self, stream: str, number: int) -> Any:
        # hashed, since neighbouring seeds give overlapping items
        seed = int.from_bytes(hashlib.sha256(f"{stream}/{number}".encode()).digest()[:4], "big")
        return make_dataset(self._data.options, seed, _CHUNK)

    def _item(self, stream: str, index: int) -> dict[str, Any]:
        entry: dict[str, Any] = self._chunk(stream, index // _CHUNK)[index % _CHUNK]
        return entry

    def _entry(self, stream: str, index: int) -> dict[str, Any]:
        for attempt in range(_REDRAWS):
            entry = self._item(f"{stream}/{attempt}", index)
            if entry["answer"] is not None and entry["question"] not in self._kept_out:
                return entry
        raise self._too_small(len(self._kept_out))

    def _evaluation_entries(self) -> list[dict[str, Any]]:
        wanted = self._data.eval_prompts
        found: dict[str, dict[str, Any]] = {}
        # so many that a task passes only if a training draw is kept out at most nearly always, as _REDRAWS can bear
        for index in range(4 * wanted + 100):
            entry = self._item("reasoning_gym/evaluation", index)
            if entry["answer"] is not None:
                found.setdefault(entry["question"], entry)
            if len(found) == wanted:
                return list(found.values())
        raise self._too_small(len(found))

    def _too_small(self, found: int) -> RecipeError:
        task = self._data.options["task"]
        reason = f"is too many for the task {task}, which gives about {found} problems with a reference answer"
        return refusal(
            "data.eval_prompts", self._data.eval_prompts, reason, "lower it, widen the options or change task"
        )

    def _problem(self, name: str, entry: dict[str, Any]) -> Problem:
        prompt = fill_template(self._data.prompt_template, entry["question"])
        return Problem(name, prompt, str(entry["answer"]), {"entry": entry})


def _check_hash_order(task: str) -> None:
    if task in _HASH_ORDERED and os.environ.get("PYTHONHASHSEED", "random") in ("", "random"):
        reason = "draws its items in the order of Python's string hashes, which differs between processes"
        raise refusal("data.options.task", task, reason, "set the environment variable PYTHONHASHSEED=0")

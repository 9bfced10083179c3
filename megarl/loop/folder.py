"""The run's folder: whose run it holds, and that only one process works in it."""

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from megarl.config.errors import RecipeError, RunFolderError
from megarl.config.load import recipe_from_tree, recipe_hash
from megarl.config.refusal import in_words
from megarl.config.resume import changes, listed
from megarl.config.schema import Recipe
from megarl.loop.place import check_place
from megarl.observe.files import write_json_atomic

RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
_LOCK_FILE = ".lock"
_NO_RUNS = (_LOCK_FILE, "slurm")
"""What a folder may hold before its run: a job under SLURM notes there what became of its attempts."""


def check_folder(recipe: Recipe) -> None:
    """Refuses a folder that this recipe must not write to. Changes nothing.

    Raises:
        RunFolderError: it cannot be made or written to; or it holds another recipe's run, or files that are no run; or
            `resume` forbids what it finds.
    """
    check_place(recipe.output_dir)
    folder = Path(recipe.output_dir)
    held = held_recipe(folder)
    if held is None:
        if recipe.resume == "must":
            raise RunFolderError(f"resume=must, but output_dir={folder} holds no run; set resume=auto to start one.")
        if folder.exists() and any(path.name not in _NO_RUNS for path in folder.iterdir()):
            raise RunFolderError(f"output_dir={folder} holds files that are not a run; name an empty or new folder.")
        return
    if recipe.resume == "never":
        raise RunFolderError(
            f"resume=never, but output_dir={folder} holds a run; name another folder or set resume=auto."
        )
    found = changes(asdict(held), asdict(recipe))
    if found.fixed:
        allowed = f"; {listed(found.allowed)} may" if found.allowed else ""
        raise RunFolderError(
            f"output_dir={folder} holds the run of another recipe: {listed(found.fixed)} may not change{allowed}; "
            "name another folder, or give those keys the run's own values."
        )


def claim_folder(recipe: Recipe, facts: dict[str, Any]) -> TextIO:
    """Makes the folder this recipe's, and locks it for as long as the returned file is open.

    Args:
        recipe: the recipe that `check_folder` let pass.
        facts: what else the run's file tells: library versions.

    Raises:
        RunFolderError: another process works in the folder.
    """
    folder = Path(recipe.output_dir)
    try:
        # one by one, since mkdir(parents=True) calls itself for each level
        for level in (*reversed(folder.parents), folder):
            level.mkdir(exist_ok=True)
        lock = open(folder / _LOCK_FILE, "w")  # noqa: SIM115 - held for the life of the run
    except OSError as error:
        raise RunFolderError(
            f"output_dir={folder} cannot be written ({error.strerror}); name another folder."
        ) from error
    try:
        # the process's own: one forked from it must not hold the folder when the run is over
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        lock.close()
        raise RunFolderError(
            f"output_dir={folder} is in use by another process; wait for it or name another."
        ) from error
    except OSError as error:
        lock.close()
        raise RunFolderError(
            f"output_dir={folder} is on a file system without locks ({error.strerror}); name a folder on another."
        ) from error
    # again, now that no other process can claim it in between
    check_folder(recipe)
    if not (folder / RUN_FILE).exists():
        run = {"recipe_hash": recipe_hash(recipe), "recipe": asdict(recipe), **facts}
        with writing_to(recipe.output_dir, RUN_FILE):
            write_json_atomic(folder / RUN_FILE, run)
    return lock


@contextlib.contextmanager
def writing_to(output_dir: str, what: str) -> Iterator[None]:
    """Puts into words that the run's folder takes no more: the disk is full, or read-only, or gone.

    Args:
        output_dir: the recipe's.
        what: is written in the block.
    """
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"output_dir={output_dir} did not take {what} ({error.strerror or error}); make room or mend the file "
            "system, and the same command goes on from the newest checkpoint, if there is one."
        ) from error


def held_recipe(folder: Path, key: str = "output_dir", fix: str = "name another folder") -> Recipe | None:
    """The recipe of the run that a folder holds; keys that it is too old to know have their defaults.

    Args:
        folder: of a run, or not.
        key: what the user gave the folder as, for refusals.
        fix: what to do where the run's file is damaged.

    Returns:
        None where the folder holds no run.

    Raises:
        RunFolderError: the run's file cannot be read, or has no recipe that this release knows.
    """
    if not (file := folder / RUN_FILE).exists():
        return None
    place = f"{key}={in_words(str(folder))}"
    try:
        return recipe_from_tree(json.loads(file.read_text())["recipe"])
    except RecipeError as error:
        raise RunFolderError(f"{place}: {error}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{place} has a {RUN_FILE} that cannot be read ({error}); {fix}.") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{place} has a {RUN_FILE} without a recipe; {fix}.") from error

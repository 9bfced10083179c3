"""Cross-field checks of the data source and the reward."""

import os
from pathlib import Path

from megarl.config.names import KNOWN_REWARDS, is_dotted_path, nearest
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe

_SUFFIXES = (".jsonl", ".parquet")


def file_source_has_files(recipe: Recipe) -> None:
    """The file source needs a training file, and any file it names must be there in a format it reads."""
    data = recipe.data
    if data.source != "file":
        return
    if data.path is None:
        raise refusal("data.path", None, "is needed with data.source=file", "give a .jsonl or .parquet file")
    for name, path in (("data.path", data.path), ("data.eval_path", data.eval_path)):
        if path is None:
            continue
        if Path(path).suffix not in _SUFFIXES:
            raise refusal(name, path, "is neither .jsonl nor .parquet", "convert the file to one of them")
        if not os.path.isfile(path):
            raise refusal(name, path, "is not a file", "check the path, which is relative to the working folder")


def file_source_has_no_options(recipe: Recipe) -> None:
    """The file source has keys of its own and would ignore free options."""
    data = recipe.data
    if data.source == "file" and data.options:
        fix = "set data.options=null to drop what this recipe or a base recipe gives"
        raise refusal("data.options", data.options, "is not read with data.source=file", fix)


def template_has_one_prompt(recipe: Recipe) -> None:
    """The template is filled in one place."""
    template = recipe.data.prompt_template
    count = template.count("{prompt}")
    if count != 1:
        raise refusal("data.prompt_template", template, f"holds {{prompt}} {count} times", "write it exactly once")


def demonstrations_exist(recipe: Recipe) -> None:
    """SFT on a file needs a column to imitate."""
    data = recipe.data
    if recipe.sft.steps > 0 and data.source == "file" and data.demonstration_column is None:
        reason = f"is needed by sft.steps={recipe.sft.steps} with data.source=file"
        raise refusal("data.demonstration_column", None, reason, "name the column of responses or set sft.steps=0")


def reward_is_known(recipe: Recipe) -> None:
    """A reward is registered, or the dotted path of a callable."""
    name = recipe.reward.name
    if name not in KNOWN_REWARDS and not is_dotted_path(name):
        guess = nearest(name, KNOWN_REWARDS)
        fix = f"did you mean {guess}?" if guess else f"use one of {', '.join(KNOWN_REWARDS)}"
        reason = "is neither a registered reward nor a dotted path like module.function"
        raise refusal("reward.name", name, reason, fix)


def reward_fits_source(recipe: Recipe) -> None:
    """Reasoning Gym scores its own problems only."""
    name, source = recipe.reward.name, recipe.data.source
    if name == "reasoning_gym" and source != "reasoning_gym":
        raise refusal("reward.name", name, f"cannot score data.source={source}", "set data.source=reasoning_gym")


DATA_CHECKS = (
    file_source_has_no_options,
    file_source_has_files,
    template_has_one_prompt,
    demonstrations_exist,
    reward_is_known,
    reward_fits_source,
)

"""A run's checkpoint, or a folder in Hugging Face layout, as a folder in Hugging Face layout."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from megarl.checkpoint.hf import copy_hf, export_hf
from megarl.checkpoint.store import MANIFEST, CheckpointStore, damage_of
from megarl.checkpoint.tensors import load_model
from megarl.config.errors import RunFolderError
from megarl.config.model import ParallelConfig
from megarl.config.precision import FP8Config
from megarl.config.refusal import in_words
from megarl.data.tokenizer import build_tokenizer
from megarl.loop.folder import CHECKPOINTS, RUN_FILE, held_recipe
from megarl.loop.place import check_place
from megarl.megatron.hf_model import check_hf_model
from megarl.megatron.policy import FrozenModel
from megarl.megatron.world import join_world, leave_world

SOURCE, TARGET = "SOURCE", "TARGET"
"""The command's arguments, for refusals."""


def convert(source: Path, target: Path, shard_bytes: int, *, name: str = SOURCE) -> None:
    """Writes the policy in `source` to `target`, in one process.

    Args:
        source: a run's folder (its newest whole checkpoint is taken), one of its checkpoints, or a folder in Hugging
            Face layout, which is checked and sharded anew.
        target: a folder that is not there or empty.
        shard_bytes: largest file of weights.
        name: what the user gave the source as, for refusals.

    Raises:
        UserError: the source is none of these or is damaged, or the target holds files or cannot be written.
    """
    target = _free_place(target)
    if os.path.isfile(source / "config.json"):
        _reshard(source, target, shard_bytes)
    elif os.path.isfile(source / RUN_FILE):
        found = CheckpointStore(source / CHECKPOINTS, keep=1).newest()
        if found is None:
            raise RunFolderError(f"{name}={in_words(str(source))} holds no checkpoint; train it further first.")
        _export(source, found[0], target, shard_bytes, name)
    elif os.path.isfile(source / MANIFEST) and os.path.isfile(source.resolve().parent.parent / RUN_FILE):
        if (damage := damage_of(source)) is not None:
            raise RunFolderError(f"{name}={in_words(str(source))} is damaged ({damage}); give another checkpoint.")
        _export(source.resolve().parent.parent, source, target, shard_bytes, name)
    else:
        raise RunFolderError(
            f"{name}={in_words(str(source))} is no run, no run's checkpoint and no Hugging Face folder; give one."
        )


def _free_place(target: Path) -> Path:
    """The target's absolute path, once it is known that a folder can be written there."""
    # a folder has a name, and "." and ".." are none
    place = Path(os.path.abspath(target))
    check_place(str(place), TARGET)
    if place.exists() and any(place.iterdir()):
        raise RunFolderError(f"{TARGET}={in_words(str(target))} is there already; name a new folder.")
    # it is written beside
    check_place(str(place.parent), TARGET)
    return place


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Puts into words that the disk is full, or gone."""
    try:
        yield
    except OSError as error:
        reason = f"could not be written ({error})"
        raise RunFolderError(f"{TARGET}={in_words(str(target))} {reason}; make room or name another folder.") from error


def _reshard(source: Path, target: Path, shard_bytes: int) -> None:
    found = check_hf_model(source, SOURCE)
    with _writing(target):
        copy_hf(found, target, shard_bytes)


def _export(run: Path, checkpoint: Path, target: Path, shard_bytes: int, name: str) -> None:
    """From any layout: the checkpoint's tensors are cut anew for a world of one."""
    recipe = held_recipe(run, name, "restore it from a copy")
    assert recipe is not None, "who calls has seen the file"
    recipe.parallel = ParallelConfig(threads=recipe.parallel.threads)
    # nothing is multiplied here, and the layers of real FP8 are for GPUs alone
    recipe.precision.fp8 = FP8Config()
    tokenizer = build_tokenizer(recipe.tokenizer)
    layout = join_world(recipe.parallel, recipe.seed)
    try:
        policy = FrozenModel(recipe, layout, len(tokenizer))
        load_model(policy.models, checkpoint)
        with _writing(target):
            export_hf(policy, target, tokenizer, shard_bytes)
    finally:
        leave_world()

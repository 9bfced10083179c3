"""A run's checkpoint, or a folder in Hugging Face layout, as a folder in Hugging Face layout."""

import json
from pathlib import Path

from megarl.checkpoint.hf import copy_hf, export_hf
from megarl.checkpoint.store import MANIFEST, CheckpointStore
from megarl.checkpoint.tensors import load_model
from megarl.config.errors import RunFolderError
from megarl.config.hf_config import model_keys, read_config, refuse_other_architectures
from megarl.config.load import recipe_from_tree
from megarl.config.model import ModelConfig, ParallelConfig
from megarl.config.moe import MoEConfig
from megarl.config.refusal import in_words
from megarl.data.tokenizer import build_tokenizer
from megarl.loop.folder import CHECKPOINTS, RUN_FILE
from megarl.megatron.hf_folder import check_saved_weights
from megarl.megatron.policy import FrozenModel
from megarl.megatron.world import join_world, leave_world

SOURCE = "SOURCE"
"""The command's argument, for refusals."""


def convert(source: Path, target: Path, shard_bytes: int) -> None:
    """Writes the policy in `source` to `target`, in one process.

    Args:
        source: a run's folder (its newest whole checkpoint is taken), one of its checkpoints, or a folder in Hugging
            Face layout, which is checked and sharded anew.
        target: a folder that is not there or empty.
        shard_bytes: largest file of weights.

    Raises:
        UserError: the source is none of these or is damaged, or the target holds files.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunFolderError(f"TARGET={in_words(str(target))} is there already; name a new folder.")
    if (source / "config.json").is_file():
        _reshard(source, target, shard_bytes)
    elif (source / RUN_FILE).is_file():
        found = CheckpointStore(source / CHECKPOINTS, keep=1).newest()
        if found is None:
            raise RunFolderError(f"{SOURCE}={in_words(str(source))} holds no checkpoint; train it further first.")
        _export(source, found[0], target, shard_bytes)
    elif (source / MANIFEST).is_file() and (source.resolve().parents[1] / RUN_FILE).is_file():
        _export(source.resolve().parents[1], source, target, shard_bytes)
    else:
        raise RunFolderError(
            f"{SOURCE}={in_words(str(source))} is no run, no run's checkpoint and no Hugging Face folder; give one."
        )


def _reshard(source: Path, target: Path, shard_bytes: int) -> None:
    held = read_config(str(source), SOURCE)
    refuse_other_architectures(str(source), held, SOURCE)
    shape = model_keys(str(source), held, SOURCE)
    model = ModelConfig(**{**shape, "moe": MoEConfig(**shape.get("moe", {}))})
    if "vocab_size" not in held:
        raise RunFolderError(f"{SOURCE}={in_words(str(source))} has a config.json without vocab_size; mend it.")
    found = check_saved_weights(source, model, held["vocab_size"], SOURCE, more_rows=False)
    copy_hf(found, target, shard_bytes)


def _export(run: Path, checkpoint: Path, target: Path, shard_bytes: int) -> None:
    """From any layout: the checkpoint's tensors are cut anew for a world of one."""
    recipe = recipe_from_tree(json.loads((run / RUN_FILE).read_text())["recipe"])
    recipe.parallel = ParallelConfig(threads=recipe.parallel.threads)
    tokenizer = build_tokenizer(recipe.tokenizer)
    layout = join_world(recipe.parallel, recipe.seed)
    try:
        policy = FrozenModel(recipe, layout, len(tokenizer))
        load_model(policy.models, checkpoint)
        export_hf(policy, target, tokenizer, shard_bytes)
    finally:
        leave_world()

"""Finds the user's mistakes that a recipe alone does not show, before any process or file is made."""

import os
from pathlib import Path

from megarl.config.check_init import check_vocabulary
from megarl.config.errors import RecipeError
from megarl.config.schema import Recipe


def preflight(recipe: Recipe, *, writes: bool) -> None:
    """Checks the recipe against what is here.

    Args:
        recipe: checked by itself.
        writes: whether the command writes to the run's folder, which must then be this recipe's, and mirrors its
            metrics.

    Raises:
        UserError: the first mistake.
    """
    from megarl.data.registry import build_source
    from megarl.data.tokenizer import build_tokenizer, check_prompt_lengths
    from megarl.loop.folder import check_folder
    from megarl.objectives.registry import build_objective
    from megarl.observe.mirrors import check_wandb
    from megarl.platform.kernel_support import check_kernels
    from megarl.platform.platform import current
    from megarl.platform.precision_support import check_precision
    from megarl.platform.transport_support import check_transport
    from megarl.rewards.registry import build_reward
    from megarl.rollout.build import check_engine_here

    devices = current().devices_here
    if devices is not None and (local := _ranks_here(recipe)) > devices:
        raise RecipeError(
            f"parallel.world_size={recipe.parallel.world_size} puts {local} processes on this machine, which has "
            f"{devices} GPUs; use fewer, or train on the CPU with CUDA_VISIBLE_DEVICES= in the environment."
        )
    if devices is not None:
        check_kernels()
    check_precision(recipe.precision)
    check_transport(recipe.sync)
    check_engine_here(recipe)
    if writes:
        check_folder(recipe)
        check_wandb(recipe.observe.wandb_project)
    build_objective(recipe.rl.objective)
    build_reward(recipe)
    tokenizer = build_tokenizer(recipe.tokenizer)
    check_vocabulary(recipe, len(tokenizer))
    if recipe.model.init_from is not None:
        from megarl.megatron.hf_folder import check_saved_weights

        check_saved_weights(Path(recipe.model.init_from), recipe.model, len(tokenizer))
    check_prompt_lengths(build_source(recipe), tokenizer, recipe)


def _ranks_here(recipe: Recipe) -> int:
    """Processes of the trainer on this machine, as far as the launcher tells."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("SLURM_NTASKS_PER_NODE", recipe.parallel.world_size)))

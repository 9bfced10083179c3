"""What `megarl plan` does."""

import math

from rich.console import Console

from megarl.config.errors import UserError
from megarl.config.schema import Recipe
from megarl.plan import report
from megarl.plan.plan import nearest_fit, plan_recipe


def plan(recipe: Recipe, *, gpu_memory: float, vocab_size: int | None, as_json: bool) -> int:
    """Prints the plan of a recipe.

    Args:
        recipe: a recipe that was checked.
        gpu_memory: of one device, in GiB.
        vocab_size: tokens, in place of the recipe's tokenizer's.
        as_json: print JSON in place of tables.

    Returns:
        0 if the plan fits, else 1.

    Raises:
        UserError: an option is out of its range, nothing is trained, or the tokens cannot be counted.
    """
    if not (math.isfinite(gpu_memory) and gpu_memory > 0):
        raise UserError(f"--gpu-memory={gpu_memory:g} is no memory above 0; give the GiB of one GPU, such as 80.")
    if vocab_size is not None and vocab_size < 1:
        raise UserError(f"--vocab-size={vocab_size} is below 1; give the number of tokens.")
    limit = int(gpu_memory * report.GIB)
    planned = plan_recipe(recipe, vocab_size)
    fits = planned.peak <= limit
    nearest, least = (None, None) if fits else nearest_fit(recipe, limit, vocab_size)
    if as_json:
        print(report.as_json(planned, limit, nearest, least), end="")
    else:
        report.print_report(Console(highlight=False), planned, limit, nearest, least)
    return int(not fits)

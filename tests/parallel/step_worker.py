"""One GRPO step of the demo recipe under a layout, for test_step_equality."""

from pathlib import Path
from typing import Any

from megarl.config.load import load_recipe
from megarl.loop.journal import Journal
from megarl.loop.rl import rl_step
from megarl.loop.run import build_run
from megarl.loop.start import begin_reference, start
from megarl.loop.stop import StopFlag
from megarl.megatron.batch import pad_batch
from megarl.megatron.micro_batches import TokenBudget
from megarl.megatron.world import join_world
from megarl.platform.platform import current


def first_step(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, Any]:
    """Metrics of step 1, and the token log-probs of its rollouts before and after the update."""
    recipe = load_recipe("recipes/demo/grpo_arithmetic.yaml", [*args["overrides"], f"output_dir={result_dir}"]).recipe
    layout = join_world(recipe.parallel, recipe.seed)
    run = build_run(recipe, layout, Journal(recipe, is_main=False), StopFlag())
    start(run)
    begin_reference(run)
    run.sync.push(0)
    problems = [run.source.training(index) for index in range(4)]
    completions = run.generate(run.requests(problems, 4, "rl/0"), run.sampling())
    batch = pad_batch(
        [completion.request.prompt_ids for completion in completions],
        [completion.token_ids for completion in completions],
        current().device,
    )
    tokens = recipe.rl.micro_batch_tokens
    size = 4 if tokens is None else TokenBudget(tokens)
    before = run.policy.log_probs(batch, size)
    metrics, _ = rl_step(run)
    return {
        "metrics": metrics,
        "tokens": [completion.token_ids for completion in completions],
        "engine_log_probs": [completion.log_probs for completion in completions],
        "before": before[batch.mask_BT],
        "after": run.policy.log_probs(batch, size)[batch.mask_BT],
    }

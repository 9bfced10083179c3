"""Cross-field checks of the training phases and of evaluation."""

from math import ceil, isqrt

from megarl.config.names import KNOWN_OBJECTIVES, is_dotted_path, nearest
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe


def something_to_do(recipe: Recipe) -> None:
    """A run must train or evaluate."""
    if recipe.sft.steps == 0 and recipe.rl.steps == 0 and recipe.evaluate.samples_per_prompt == 0:
        reason = "leaves nothing to do, as sft.steps and evaluate.samples_per_prompt are 0 too"
        raise refusal("rl.steps", 0, reason, "set one of the three above 0")


def objective_is_known(recipe: Recipe) -> None:
    """An objective is registered, or a dotted path."""
    name = recipe.rl.objective.name
    if name not in KNOWN_OBJECTIVES and not is_dotted_path(name):
        guess = nearest(name, KNOWN_OBJECTIVES)
        fix = f"did you mean {guess}?" if guess else f"use one of {', '.join(KNOWN_OBJECTIVES)}"
        reason = "is neither a registered objective nor a dotted path like module.name"
        raise refusal("rl.objective.name", name, reason, fix)


def rollouts_split_into_updates(recipe: Recipe) -> None:
    """Each optimizer step of an RL step must train on the same number of responses, evenly over ranks and passes."""
    rl = recipe.rl
    if rl.steps == 0:
        return
    if rl.rollouts_per_step % rl.updates_per_step:
        reason = f"does not divide the {rl.rollouts_per_step} rollouts of a step (prompts_per_step*samples_per_prompt)"
        raise refusal("rl.updates_per_step", rl.updates_per_step, reason, "give a divisor of that number")
    if rl.micro_batch_tokens is None:
        batch = rl.rollouts_per_step // rl.updates_per_step
        _check_split(recipe, batch, "rollouts", "rl.micro_batch_size", rl.micro_batch_size)


def warmup_ends(recipe: Recipe) -> None:
    """The learning rate must come down again: warm-up is shorter than the phase."""
    rl = recipe.rl
    policy_updates = (rl.steps - rl.critic.warmup_steps) * rl.updates_per_step
    critic_updates = rl.steps * rl.updates_per_step if rl.advantage == "gae" else 0
    phases = (
        ("sft", recipe.sft.steps, recipe.sft.optimizer),
        ("rl", policy_updates, rl.optimizer),
        ("rl.critic", critic_updates, rl.critic.optimizer),
    )
    for phase, updates, optimizer in phases:
        if 0 < updates <= optimizer.warmup_steps:
            reason = f"leaves no step after the warm-up of the {updates} optimizer steps of the phase"
            fix = f"give at most {updates - 1}"
            raise refusal(f"{phase}.optimizer.warmup_steps", optimizer.warmup_steps, reason, fix)


def demonstrations_split_over_ranks(recipe: Recipe) -> None:
    """The SFT batch must split evenly over ranks and passes."""
    if recipe.sft.steps > 0 and recipe.sft.micro_batch_tokens is None:
        micro = recipe.sft.micro_batch_size
        _check_split(recipe, recipe.sft.batch_size, "demonstrations", "sft.micro_batch_size", micro)


def sequence_fits_budget(recipe: Recipe) -> None:
    """A packed micro-batch must hold the longest sequence that the model reads."""
    parallel, longest = recipe.parallel, recipe.model.max_position_embeddings
    multiple = parallel.token_multiple(recipe.precision.fp8.alignment)
    needed = ceil(longest / multiple) * multiple
    for phase, section in (("sft", recipe.sft), ("rl", recipe.rl)):
        tokens = section.micro_batch_tokens
        if section.steps > 0 and tokens is not None and tokens * parallel.context < needed:
            reason = f"holds no sequence of model.max_position_embeddings={longest} tokens"
            if multiple > 1:
                reason += f", padded to a multiple of {multiple}"
            fix = f"give at least {ceil(needed / parallel.context)} or shorten the context"
            raise refusal(f"{phase}.micro_batch_tokens", tokens, reason, fix)


def response_fits_context(recipe: Recipe) -> None:
    """A response shares the context with at least one prompt token."""
    new, context = recipe.rollout.max_new_tokens, recipe.model.max_position_embeddings
    if new >= context:
        reason = f"leaves no room for a prompt in model.max_position_embeddings={context}"
        raise refusal("rollout.max_new_tokens", new, reason, f"give at most {context - 1}, less the longest prompt")


def ks_can_be_estimated(recipe: Recipe) -> None:
    """pass@k is estimated from n samples for 1 <= k <= n (arXiv:2107.03374)."""
    samples, ks = recipe.evaluate.samples_per_prompt, recipe.evaluate.ks
    if not ks and samples > 0:
        raise refusal("evaluate.ks", ks, "is empty", "list at least one k or set evaluate.samples_per_prompt=0")
    if any(k < 1 for k in ks):
        raise refusal("evaluate.ks", ks, "holds a k below 1", "give whole numbers from 1 up")
    if ks != sorted(set(ks)):
        raise refusal("evaluate.ks", ks, "is not in rising order without repeats", f"write {sorted(set(ks))}")
    if samples > 0 and ks[-1] > samples:
        reason = f"holds {ks[-1]}, above evaluate.samples_per_prompt={samples}"
        raise refusal("evaluate.ks", ks, reason, "drop that k or sample more")


def _check_split(recipe: Recipe, batch: int, what: str, micro_path: str, micro: int) -> None:
    data = recipe.parallel.data
    if batch % data:
        reason = f"leaves {data} data-parallel ranks, which do not divide the {batch} {what} of an update"
        raise refusal("parallel.world_size", recipe.parallel.world_size, reason, "change one of the two")
    share = batch // data
    if share % micro:
        best = min(_divisors(share), key=lambda size: abs(size - micro))
        reason = f"does not divide the {share} {what} of a rank's update"
        raise refusal(micro_path, micro, reason, f"the nearest size that does is {best}")
    stages = recipe.parallel.pipeline
    if recipe.parallel.virtual > 1 and (share // micro) % stages:
        reason = (
            f"makes {share // micro} micro-batches of a rank's {share} {what}, and parallel.virtual="
            f"{recipe.parallel.virtual} runs them {stages} at a time (parallel.pipeline)"
        )
        raise refusal(micro_path, micro, reason, f"give a size of which {stages}, or a multiple, make up {share}")


def _divisors(number: int) -> list[int]:
    """All divisors, rising. Each small one has its large partner, so the square root is far enough to look."""
    small = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return small + [number // size for size in reversed(small) if size * size != number]


TRAINING_CHECKS = (
    something_to_do,
    objective_is_known,
    rollouts_split_into_updates,
    warmup_ends,
    demonstrations_split_over_ranks,
    sequence_fits_budget,
    response_fits_context,
    ks_can_be_estimated,
)

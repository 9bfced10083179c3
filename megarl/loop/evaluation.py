"""pass@k of the engine's weights on the evaluation prompts."""

from dataclasses import asdict
from functools import partial
from typing import Any

from megarl.evaluate.pass_at_k import pass_at_k_curve
from megarl.loop.run import Run
from megarl.loop.watchdog import phase
from megarl.rewards.registry import score
from megarl.rewards.score import score_on_all_ranks
from megarl.rollout.types import Completion


def evaluate(run: Run) -> dict[str, Any]:
    """Samples every evaluation prompt `evaluate.samples_per_prompt` times, and once greedily. Collective.

    Returns:
        JSON-ready: the pass@k curve with its intervals (see `PassAtK`), `greedy` accuracy, `mean_tokens` of the sampled
        responses, and the numbers of `problems` and `samples`.
    """
    config = run.recipe.evaluate
    problems = run.source.evaluation()
    # one stream for every evaluation: two policies are compared on the same draws
    with phase("evaluation"):
        sampled = run.generate(run.requests(problems, config.samples_per_prompt, "evaluation"), run.sampling())
    with phase("evaluation"):
        greedy = run.generate(run.requests(problems, 1, "evaluation/greedy"), run.sampling(greedy=True))
    with phase("evaluation"):
        solved = _solved(run, sampled)
    correct = [
        sum(solved[row * config.samples_per_prompt : (row + 1) * config.samples_per_prompt])
        for row in range(len(problems))
    ]
    curve = pass_at_k_curve(config.samples_per_prompt, correct, config.ks)
    return {
        **asdict(curve),
        "greedy": sum(_solved(run, greedy)) / len(problems),
        "mean_tokens": sum(len(completion.token_ids) for completion in sampled) / len(sampled),
        "problems": len(problems),
        "samples": config.samples_per_prompt,
    }


def _solved(run: Run, completions: list[Completion]) -> list[bool]:
    by_id = {problem.id: problem for problem in run.source.evaluation()}
    rewards_B = score_on_all_ranks(
        partial(score, run.reward),
        [run.response_text(completion) for completion in completions],
        [by_id[completion.request.problem_id] for completion in completions],
        run.layout.rank,
        run.layout.world_size,
    )
    return [reward >= run.recipe.evaluate.solved_from for reward in rewards_B.tolist()]

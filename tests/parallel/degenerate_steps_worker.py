"""RL steps on degenerate rollouts, for test_degenerate_steps."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megarl.data.problem import Problem
from megarl.loop.journal import Journal
from megarl.loop.rl import rl_step
from megarl.loop.run import Run, build_run
from megarl.loop.start import begin_reference, start
from megarl.loop.stop import StopFlag
from megarl.megatron.world import Layout, join_world
from megarl.rollout.engine import Engine
from megarl.rollout.types import Completion, Request, SamplingParams

JUNK = (float("nan"), -float("inf"), None)


def is_odd(response: str, problem: Problem) -> float:
    """A reward that about half of the responses get, whatever the policy."""
    return float(sum(map(ord, response)) % 2)


class PlantingEngine:
    """A real engine whose completions are changed by `plant` on their way out."""

    def __init__(self, inner: Engine, plant: Callable[[Completion], Completion]) -> None:
        self._inner, self._plant = inner, plant

    @property
    def version(self) -> int:
        """The inner engine's."""
        return self._inner.version

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Hands the weights on."""
        self._inner.load_weights(tensors, version)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """The inner engine's completions, planted on."""
        return [self._plant(completion) for completion in self._inner.generate(requests, sampling)]


def lose_some(completion: Completion) -> Completion:
    """Every third log-prob, in sample 0 all: NaN, -inf and None in turn."""
    lost = [t for t in range(len(completion.log_probs)) if completion.request.sample == 0 or t % 3 == 1]
    log_probs = list(completion.log_probs)
    for number, t in enumerate(lost):
        log_probs[t] = JUNK[number % len(JUNK)]
    return replace(completion, log_probs=tuple(log_probs))


def lose_all(completion: Completion) -> Completion:
    """Every log-prob."""
    return replace(completion, log_probs=tuple(JUNK[t % len(JUNK)] for t in range(len(completion.log_probs))))


def say_nothing(completion: Completion) -> Completion:
    """No token at all."""
    return replace(completion, token_ids=(), log_probs=(), versions=())


def say_nothing_often(completion: Completion) -> Completion:
    """No token at all in samples 0 and 2."""
    return say_nothing(completion) if completion.request.sample % 2 == 0 else completion


def shift(completion: Completion) -> Completion:
    """Every log-prob two nats lower: an engine that samples from another distribution."""
    return replace(completion, log_probs=tuple(value and value - 2 for value in completion.log_probs))


def end_at_once(completion: Completion, stop_token_id: int) -> Completion:
    """The end token alone, whose log-prob is not known, in samples 0 and 2."""
    if completion.request.sample % 2:
        return completion
    spans = tuple(replace(span, end=1) for span in completion.versions[:1])
    return replace(completion, token_ids=(stop_token_id,), log_probs=(None,), finish_reason="stop", versions=spans)


PLANTS: dict[str, Callable[[Completion], Completion]] = {
    "nothing": lambda completion: completion,
    "lose some": lose_some,
    "lose all": lose_all,
    "say nothing": say_nothing,
    "say nothing often": say_nothing_often,
    "shift": shift,
}


def steps(rank: int, world_size: int, args: dict[str, Any], result_dir: Path) -> dict[str, dict[str, Any]]:
    """Case to the metrics of each of its steps, its rollouts in numbers, and how far the weights moved."""
    layout: Layout | None = None
    results = {}
    for name, (plant, count, recipe) in args["cases"].items():
        parallel = replace(recipe.parallel, world_size=world_size)
        recipe = replace(recipe, parallel=parallel, output_dir=str(result_dir / name))
        layout = layout or join_world(recipe.parallel, recipe.seed)
        with Journal(recipe, is_main=layout.is_main) as journal:
            run = build_run(recipe, layout, journal, StopFlag())
            start(run)
            begin_reference(run)
            results[name] = _steps(run, plant, count)
    return results


def _steps(run: Run, plant: str, count: int) -> dict[str, Any]:
    stop_token_id = run.stop_token_id
    plants = {**PLANTS, "end at once": lambda completion: end_at_once(completion, stop_token_id)}
    run.engine = PlantingEngine(run.engine, plants[plant])
    run.sync.push(0)
    problems = [run.source.training(index) for index in range(run.recipe.rl.prompts_per_step)]
    requests = run.requests(problems, run.recipe.rl.samples_per_prompt, "rl/0")
    completions = run.generate(requests, run.sampling())
    before = {name: tensor.clone() for name, tensor in run.policy.export()}
    metrics = []
    for step in range(count):
        values, samples = rl_step(run)
        run.state.step += 1
        run.journal.step("rl", step + 1, values, samples)
        metrics.append(values)
    changes = [(tensor - before[name]).abs().max() for name, tensor in run.policy.export()]
    return {
        "metrics": metrics,
        "tokens": [len(completion.token_ids) for completion in completions],
        "lost": [sum(value in JUNK or value != value for value in c.log_probs) for c in completions],
        "truncated": [completion.finish_reason == "length" for completion in completions],
        "moved": torch.stack(changes).max().item(),
    }

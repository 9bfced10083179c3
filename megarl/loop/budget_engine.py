"""The engine's side of a drift budget: the same requests by the engine alone, and by servers with other settings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from megarl.diagnose.same_tokens import log_probs_of_same_tokens
from megarl.drift.budget import Part, part
from megarl.loop.budget_trainer import FP32, Answers, Trainer
from megarl.loop.engines import engine_of
from megarl.loop.run import Run
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.engine import Engine
from megarl.rollout.types import Request
from megarl.sync.push import LocalSync, ServedSync


def engine_floor(engine: Engine, answers: Answers, run: Run) -> Part:
    """One request at once against all at once."""
    requests = [completion.request for completion in answers.completions]
    found: list[float] = []
    for request, before in zip(requests, answers.completions, strict=True):
        (again,) = engine.generate([request], run.sampling())
        found += log_probs_of_same_tokens(before, again)
    alone_N = torch.tensor(found, dtype=torch.float64)
    return part("floor, engine", "engine, one request at once less all", alone_N - answers.engine_N, answers.rows_N)


def engine_parts(run: Run, trainer: Trainer, requests: Sequence[Request], answers: Answers) -> Iterator[Part]:
    """The engine in fp32 against the trainer in fp32, then what the engine's own settings add."""
    steps: list[Part] = []
    settings = run.recipe.engine
    dtype = settings.dtype_beside(run.recipe.precision.dtype)
    words = f"Megatron less {run.recipe.rollout.engine}, both in fp32 at the same weights"
    if settings.urls:
        # what somebody else has started cannot be started again with other settings
        words = "Megatron in fp32 less the servers of engine.urls as they are"
    elif run.recipe.rollout.engine != "embedded":
        if settings.quantization != "none":
            plain = _asked(run, trainer, requests, quantization="none", dtype=dtype)
            between = f"{dtype} less {settings.quantization}, tokens that both draw"
            steps.append(_between("quantisation, engine", between, plain, answers))
            answers = plain
        if dtype != "fp32":
            clean = _asked(run, trainer, requests, quantization="none", dtype="fp32")
            steps.append(_between("precision, engine", f"fp32 less {dtype}, tokens that both draw", clean, answers))
            answers = clean
    yield part("kernel", words, trainer.log_probs(answers, FP32) - answers.engine_N, answers.rows_N)
    yield from reversed(steps)


def _asked(run: Run, trainer: Trainer, requests: Sequence[Request], *, quantization: str, dtype: str) -> Answers:
    """The same requests, answered by servers with other settings."""
    recipe = replace(run.recipe, engine=replace(run.recipe.engine, quantization=quantization, dtype=dtype))
    with engine_of(recipe, run.policy.vocab_size, is_main=True) as engine:
        assert engine is not None
        policy = trainer.model(run.recipe.precision)
        sync = LocalSync(policy, engine) if isinstance(engine, EmbeddedEngine) else ServedSync(recipe, policy, engine)
        sync.push(0)
        found = Answers.of(engine.generate(requests, run.sampling()))
        sync.close()
    return found


def _between(name: str, words: str, one: Answers, other: Answers) -> Part:
    """Log-probs of `one` less those of `other`, of the tokens that both drew behind the same tokens."""
    by_request = {completion.request: completion for completion in one.completions}
    found: list[float] = []
    for before in other.completions:
        again = by_request.get(before.request)
        found += [float("nan")] * len(before.token_ids) if again is None else log_probs_of_same_tokens(before, again)
    return part(name, words, torch.tensor(found, dtype=torch.float64) - other.engine_N, other.rows_N)

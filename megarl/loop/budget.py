"""What `megarl drift budget` does: one set of responses, scored in every way that lies between trainer and engine.

From the trainer as the recipe has it to the engine as the recipe has it, one switch after another: without FP8, in
fp32, at the weights that the engine had, by the engine's code in fp32, in its own precision, with its quantisation.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megarl.config.precision import FP8Config, PrecisionConfig
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.diagnose.same_tokens import log_probs_of_same_tokens
from megarl.drift.budget import Budget, Part, part
from megarl.loop.engines import engine_of
from megarl.loop.journal import Journal
from megarl.loop.rl import rl_step
from megarl.loop.run import Run, build_run
from megarl.loop.start import begin_reference, start
from megarl.loop.stop import StopFlag
from megarl.megatron.batch import TrainBatch, on_targets, pad_batch
from megarl.megatron.micro_batches import MicroBatchSize, TokenBudget, aligned_length
from megarl.megatron.policy import FrozenModel
from megarl.megatron.weights import ReadTensor
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.platform.platform import current
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.engine import Engine
from megarl.rollout.types import Completion, Request
from megarl.sync.push import LocalSync, ServedSync

_STREAM = "drift-budget"
_FP32 = PrecisionConfig()


@dataclass(frozen=True)
class Answers:
    """Responses with the engine's log-probs; N tokens in all, response by response.

    Attributes:
        completions: those with a token.
        batch: the same as the trainer reads them.
        engine_N: log-probs that the engine gave, fp64 in nats, NaN where it gave none.
        rows_N: the response of each token.
    """

    completions: Sequence[Completion]
    batch: TrainBatch
    engine_N: Tensor
    rows_N: Tensor

    @staticmethod
    def of(completions: Sequence[Completion]) -> "Answers":
        """Lays them out."""
        told = [completion for completion in completions if completion.token_ids]
        batch = pad_batch([c.request.prompt_ids for c in told], [c.token_ids for c in told], current().device)
        engine_BT = on_targets(batch, [completion.log_probs for completion in told])
        return Answers(told, batch, _of_tokens(engine_BT, batch), batch.mask_BT.nonzero()[:, 0].cpu())


def budget(recipe: Recipe, responses: int, updates: int) -> Budget:
    """Measures every part of the recipe's drift. Nothing is left behind in its folder.

    Args:
        recipe: its model, precision, engine and training.
        responses: to generate, one a training prompt.
        updates: RL steps that the trainer is ahead of the engine's weights.

    Raises:
        RecipeError: more than one process is asked for, or there is no drift to decompose.
    """
    if recipe.parallel.world_size > 1:
        reason = "is more than drift budget runs"
        raise refusal("parallel.world_size", recipe.parallel.world_size, reason, "set it to 1")
    if recipe.precision.batch_invariant:
        reason = "leaves no drift but that of stale weights"
        raise refusal("precision.batch_invariant", True, reason, "set it to false to see what it takes away")
    layout = join_world(recipe.parallel, recipe.seed, recipe.precision.fp8.alignment)
    with tempfile.TemporaryDirectory(prefix="megarl-budget-") as folder:
        rl = replace(recipe.rl, steps=max(1, updates, recipe.rl.steps))
        own = replace(recipe, output_dir=folder, resume="auto", sft=replace(recipe.sft, steps=0), rl=rl)
        run = build_run(own, layout, Journal(own, is_main=False), StopFlag())
        try:
            generated = _generated(run, responses, updates)
        finally:
            # servers with other settings may want the memory of these
            run.close()
        found = _decomposed(run, generated)
    leave_world()
    return found


@dataclass(frozen=True)
class _Generated:
    """What the run's own engine gave, and the weights before and behind the updates."""

    requests: Sequence[Request]
    answers: Answers
    engine_floor: Part
    older: ReadTensor
    newer: ReadTensor
    updates: int


def _generated(run: Run, responses: int, updates: int) -> _Generated:
    start(run)
    older = _copied(run.policy)
    run.sync.push(run.state.weight_version)
    assert run.engine is not None
    requests = run.requests([run.source.training(number) for number in range(responses)], 1, _STREAM)
    answers = Answers.of(run.engine.generate(requests, run.sampling()))
    floor = _engine_floor(run.engine, answers, run)
    if updates:
        begin_reference(run)
        for _ in range(updates):
            rl_step(run)
            run.state.step += 1
    return _Generated(requests, answers, floor, older, _copied(run.policy) if updates else older, updates)


def _decomposed(run: Run, given: _Generated) -> Budget:
    answers, updates, own = given.answers, given.updates, run.recipe.precision
    rows_N = answers.rows_N
    ahead, behind = (
        Trainer(run.recipe, run.layout, run.policy.vocab_size, read) for read in (given.newer, given.older)
    )
    own_N = ahead.log_probs(answers, own)
    clean_N = own_N if own == _FP32 else ahead.log_probs(answers, _FP32)
    parts, absent = list(_trainer_parts(ahead, answers, own_N, clean_N)), []
    if updates:
        stale_N = clean_N - behind.log_probs(answers, _FP32)
        parts.append(part("staleness", f"weights {_counted(updates)} apart, both in fp32", stale_N, rows_N))
    else:
        absent.append("staleness: the engine has the newest weights; --updates N tells what N updates would add")
    parts += _engine_parts(run, behind, given.requests, answers)
    if not any(one.name.startswith(("precision", "quantisation")) for one in parts):
        absent.append("precision and quantisation: both sides compute in fp32")
    words = "trainer less engine, as the recipe has them" + (f", {_counted(updates)} apart" if updates else "")
    return Budget(
        part("total", words, own_N - answers.engine_N, rows_N),
        tuple(parts),
        (*_trainer_floors(ahead, answers, own_N), given.engine_floor),
        tuple(absent),
    )


def _counted(updates: int) -> str:
    return "1 update" if updates == 1 else f"{updates} updates"


class Trainer:
    """The recipe's model in Megatron, at some weights."""

    def __init__(self, recipe: Recipe, layout: Layout, vocab_size: int, read: ReadTensor) -> None:
        """Args: recipe, layout, vocab_size: of the run. read: the weights."""
        self.recipe = recipe
        self._layout, self._vocab_size, self._read = layout, vocab_size, read

    def log_probs(self, answers: Answers, precision: PrecisionConfig, at_once: MicroBatchSize = 1) -> Tensor:
        """fp64 [N], in nats, under the recipe's sampling."""
        model = self.model(precision)
        return _of_tokens(model.log_probs(answers.batch, at_once), answers.batch)

    def model(self, precision: PrecisionConfig) -> FrozenModel:
        """The weights in a model of that precision."""
        model = FrozenModel(replace(self.recipe, precision=precision), self._layout, self._vocab_size)
        model.load(self._read)
        return model


def _trainer_floors(trainer: Trainer, answers: Answers, own_N: Tensor) -> Iterator[Part]:
    """Responses one at once, as all other lines have them, against all at once: padded, and packed end to end."""
    own, (rows, width) = trainer.recipe.precision, answers.batch.tokens_BT.shape
    packed = TokenBudget(rows * aligned_length(width, trainer.recipe.parallel.token_multiple(own.fp8.alignment)))
    for name, at_once in (("padded", rows), ("packed", packed)):
        together_N = trainer.log_probs(answers, own, at_once)
        yield part(f"floor, {name}", f"trainer, one at once less all {name}", own_N - together_N, answers.rows_N)


def _trainer_parts(trainer: Trainer, answers: Answers, own_N: Tensor, clean_N: Tensor) -> Iterator[Part]:
    """Without FP8, then in fp32."""
    own = trainer.recipe.precision
    if own.fp8.enabled:
        kind = f"FP8 {own.fp8.recipe}{' (emulated)' if own.fp8.emulation else ''}"
        without = replace(own, fp8=FP8Config())
        plain_N = trainer.log_probs(answers, without)
        yield part("quantisation, trainer", f"{kind} less {own.dtype}", own_N - plain_N, answers.rows_N)
        own_N = plain_N
    if own.dtype != "fp32":
        yield part("precision, trainer", f"{_named(own)} less fp32", own_N - clean_N, answers.rows_N)


def _named(precision: PrecisionConfig) -> str:
    kept = [name for name in ("head", "residual") if getattr(precision, f"fp32_{name}")]
    return precision.dtype + (f" (fp32 {' and '.join(kept)})" if kept else "")


def _engine_parts(run: Run, trainer: Trainer, requests: Sequence[Request], answers: Answers) -> Iterator[Part]:
    """The engine in fp32 against the trainer in fp32, then what the engine's own settings add."""
    steps: list[Part] = []
    settings = run.recipe.engine
    dtype = settings.dtype_beside(run.recipe.precision.dtype)
    if run.recipe.rollout.engine != "embedded":
        if settings.quantization != "none":
            plain = _asked(run, trainer, requests, quantization="none", dtype=dtype)
            words = f"{dtype} less {settings.quantization}, tokens that both draw"
            steps.append(_between("quantisation, engine", words, plain, answers))
            answers = plain
        if dtype != "fp32":
            clean = _asked(run, trainer, requests, quantization="none", dtype="fp32")
            steps.append(_between("precision, engine", f"fp32 less {dtype}, tokens that both draw", clean, answers))
            answers = clean
    words = f"Megatron less {run.recipe.rollout.engine}, both in fp32 at the same weights"
    yield part("kernel", words, trainer.log_probs(answers, _FP32) - answers.engine_N, answers.rows_N)
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


def _engine_floor(engine: Engine, answers: Answers, run: Run) -> Part:
    requests = [completion.request for completion in answers.completions]
    found: list[float] = []
    for request, before in zip(requests, answers.completions, strict=True):
        (again,) = engine.generate([request], run.sampling())
        found += log_probs_of_same_tokens(before, again)
    alone_N = torch.tensor(found, dtype=torch.float64)
    return part("floor, engine", "engine, one request at once less all", alone_N - answers.engine_N, answers.rows_N)


def _copied(policy: FrozenModel) -> ReadTensor:
    """The weights as they are now."""
    tensors = {name: tensor.clone() for name, tensor in policy.export()}
    return tensors.__getitem__


def _of_tokens(values_BT: Tensor, batch: TrainBatch) -> Tensor:
    return values_BT[batch.mask_BT].double().cpu()

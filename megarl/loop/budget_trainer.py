"""The trainer's side of a drift budget: the same tokens by Megatron in other precisions, weights and batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from megarl.config.precision import FP8Config, PrecisionConfig
from megarl.config.schema import Recipe
from megarl.drift.budget import Part, part
from megarl.megatron.batch import TrainBatch, on_targets, pad_batch
from megarl.megatron.micro_batches import MicroBatchSize, TokenBudget, aligned_length
from megarl.megatron.policy import FrozenModel
from megarl.megatron.weights import ReadTensor
from megarl.megatron.world import Layout
from megarl.platform.platform import current
from megarl.rollout.types import Completion

FP32 = PrecisionConfig()


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


def trainer_floors(trainer: Trainer, answers: Answers, own_N: Tensor) -> Iterator[Part]:
    """Responses one at once, as all other lines have them, against all at once: padded, and packed end to end."""
    own, (rows, width) = trainer.recipe.precision, answers.batch.tokens_BT.shape
    packed = TokenBudget(rows * aligned_length(width, trainer.recipe.parallel.token_multiple(own.fp8.alignment)))
    for name, at_once in (("padded", rows), ("packed", packed)):
        together_N = trainer.log_probs(answers, own, at_once)
        yield part(f"floor, {name}", f"trainer, one at once less all {name}", own_N - together_N, answers.rows_N)


def trainer_parts(trainer: Trainer, answers: Answers, own_N: Tensor, clean_N: Tensor) -> Iterator[Part]:
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


def _of_tokens(values_BT: Tensor, batch: TrainBatch) -> Tensor:
    return values_BT[batch.mask_BT].double().cpu()

"""The responses of a dump with the largest drift, in full, for a person to read."""

from dataclasses import dataclass

import torch

from megarl.dumps.responses import Key, Responses

OF_EACH = 4
"""Responses kept by the largest single token, and by the largest mean."""


@dataclass(frozen=True)
class Sample:
    """One response.

    Attributes:
        key: which it is.
        prompt: as text.
        text: the response as text.
        reward: NaN where not known.
        token_ids: its tokens.
        trainer: log-prob of each by the trainer, nats.
        rollout: by the engine.
        log_ratio: trainer - engine; None where a token is not compared.
        largest: largest |log_ratio|.
        mean: mean |log_ratio| over the tokens that are compared.
    """

    key: Key
    prompt: str
    text: str
    reward: float
    token_ids: list[int]
    trainer: list[float]
    rollout: list[float]
    log_ratio: list[float | None]
    largest: float
    mean: float


class Worst:
    """Keeps the worst responses of what it is shown."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._by_largest: list[Sample] = []
        self._by_mean: list[Sample] = []

    def add(self, chunk: Responses) -> None:
        """Looks at more responses."""
        if not len(chunk.row_N):
            return
        usable_N, row_N = chunk.usable_N, chunk.row_N
        absolute_N = chunk.log_ratio_trainer_over_rollout_N.abs()
        largest_B = torch.zeros(len(chunk), dtype=torch.float64).scatter_reduce(0, row_N, absolute_N, "amax")
        tokens_B = torch.bincount(row_N[usable_N], minlength=len(chunk))
        mean_B = torch.bincount(row_N, absolute_N, minlength=len(chunk)) / tokens_B.clamp(min=1)
        for held, score_B, name in ((self._by_largest, largest_B, "largest"), (self._by_mean, mean_B, "mean")):
            # a sample is made of a row that stays alone: its lists are long
            least = getattr(held[-1], name) if len(held) == OF_EACH else -1.0
            order = score_B.topk(min(OF_EACH, len(chunk))).indices.tolist()
            new = [_sample(chunk, row, largest_B, mean_B) for row in order if score_B[row] > least and tokens_B[row]]
            held += new
            held.sort(key=lambda sample: -getattr(sample, name))
            del held[OF_EACH:]

    def result(self) -> list[Sample]:
        """By the largest token first, then by the mean, none twice; none without drift."""
        found = {id(sample.key): sample for sample in (*self._by_largest, *self._by_mean) if sample.largest > 0}
        return list(found.values())


def _sample(chunk: Responses, row: int, largest_B: torch.Tensor, mean_B: torch.Tensor) -> Sample:
    end = int(chunk.lengths_B[: row + 1].sum())
    tokens = slice(end - int(chunk.lengths_B[row]), end)
    ratios = chunk.log_ratio_trainer_over_rollout_N[tokens].tolist()
    usable = chunk.usable_N[tokens].tolist()
    return Sample(
        key=chunk.keys[row],
        prompt=chunk.prompts[row],
        text=chunk.texts[row],
        reward=float(chunk.rewards_B[row]),
        token_ids=chunk.token_ids_N[tokens].tolist(),
        trainer=chunk.trainer_log_probs_N[tokens].tolist(),
        rollout=chunk.rollout_log_probs_N[tokens].tolist(),
        log_ratio=[ratio if known else None for ratio, known in zip(ratios, usable, strict=True)],
        largest=float(largest_B[row]),
        mean=float(mean_B[row]),
    )

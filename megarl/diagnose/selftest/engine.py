"""An engine that generates with transformers' own forward pass and cache, and into which faults are planted."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from megarl.diagnose.selftest.small import PAD, STOP
from megarl.drift.diagnosis.distribution import truncated
from megarl.drift.diagnosis.rollouts import Sampling

PROMPT_BLOCK = 8
"""Tokens of a block of the prefix cache."""


@dataclass
class PlantedEngine:
    """A small engine; each attribute is a fault where it is not what it is by default.

    Attributes:
        model: the weights.
        samples: what tokens are drawn from.
        reports: what log-probs are of.
        opener: tokens that it reads before each prompt.
        stale: the model that the prompt's cached blocks are by; None for no such cache.
        noise: standard deviation that is added to each logit, anew each time.
    """

    model: Any
    samples: Sampling
    reports: Sampling
    opener: tuple[int, ...] = ()
    stale: Any = None
    noise: float = 0.0

    @torch.no_grad()
    def generate(
        self, prompts: list[list[int]], tokens: int, generator: torch.Generator
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Responses and their log-probs; prompts are padded on their left, and hidden."""
        prompts = [[*self.opener, *prompt] for prompt in prompts]
        run = _Decoding(self, prompts)
        responses: list[list[int]] = [[] for _ in prompts]
        reported: list[list[float]] = [[] for _ in prompts]
        logits_BV = run.read_prompts()
        for place in range(tokens):
            logits_BV = logits_BV.float()
            if self.noise:
                logits_BV = logits_BV + self.noise * torch.randn(logits_BV.shape, generator=generator)
            drawn_B = torch.multinomial(_log_probs(logits_BV, self.samples).exp(), 1, generator=generator)[:, 0]
            said_BV = _log_probs(logits_BV, self.reports)
            for row, token in enumerate(drawn_B.tolist()):
                if not responses[row] or responses[row][-1] != STOP:
                    responses[row].append(token)
                    reported[row].append(float(said_BV[row, token]))
            if place + 1 < tokens:
                logits_BV = run.read(drawn_B)
        return responses, reported


class _Decoding:
    """The cache of one batch."""

    def __init__(self, engine: PlantedEngine, prompts: list[list[int]]) -> None:
        self._engine, self._longest = engine, max(map(len, prompts))
        self._lengths_B = torch.tensor([len(prompt) for prompt in prompts])
        self._ids_BP = torch.tensor([[PAD] * (self._longest - len(prompt)) + prompt for prompt in prompts])
        self._mask_BT = torch.arange(self._longest) >= self._longest - self._lengths_B[:, None]
        self._cache = DynamicCache(config=engine.model.config)

    def read_prompts(self) -> Tensor:
        positions_BP = (self._mask_BT.long().cumsum(dim=1) - 1).clamp(min=0)
        if self._engine.stale is not None:
            old = DynamicCache(config=self._engine.model.config)
            self._forward(self._engine.stale, self._ids_BP, positions_BP, old)
            cached_B1 = ((self._lengths_B - 1) // PROMPT_BLOCK * PROMPT_BLOCK)[:, None]
            self._cache = _Mixed(old, self._mask_BT & (positions_BP < cached_B1), self._engine.model.config)
        return self._forward(self._engine.model, self._ids_BP, positions_BP, self._cache)

    def read(self, drawn_B: Tensor) -> Tensor:
        self._mask_BT = torch.cat([self._mask_BT, torch.ones(len(drawn_B), 1, dtype=torch.bool)], dim=1)
        positions_B1 = self._mask_BT.sum(dim=1, keepdim=True) - 1
        return self._forward(self._engine.model, drawn_B[:, None], positions_B1, self._cache)

    def _forward(self, model: Any, ids: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        mask = self._mask_BT.long()
        output = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        last_BV: Tensor = output.logits[:, -1]
        return last_BV


class _Mixed(DynamicCache):
    """Takes keys and values of the cached places from another cache, and lets new ones in elsewhere."""

    def __init__(self, old: DynamicCache, places_BP: Tensor, config: Any) -> None:
        super().__init__(config=config)
        self._old, self._places_B1P1 = old, places_BP[:, None, :, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if key_states.shape[2] == self._places_B1P1.shape[2]:
            layer = self._old.layers[layer_idx]
            key_states = torch.where(self._places_B1P1, layer.keys, key_states)
            value_states = torch.where(self._places_B1P1, layer.values, value_states)
        held: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return held


def _log_probs(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    scaled_BV = logits_BV / sampling.temperature
    if sampling.banned:
        scaled_BV[:, list(sampling.banned)] = -torch.inf
    return truncated(scaled_BV, sampling.top_p, sampling.top_k).log_softmax(dim=1)

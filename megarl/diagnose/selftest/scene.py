"""A small model, its trainer and its engine, between which a fault may be planted."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from megarl.diagnose.selftest.engine import PlantedEngine
from megarl.diagnose.selftest.small import BEGIN, OPENER, PAD, STOP, VOCAB, small_models
from megarl.diagnose.transformers_model import TransformersModel
from megarl.drift.diagnosis.computation import Dtype
from megarl.drift.diagnosis.distribution import Distributions
from megarl.drift.diagnosis.rollouts import Rollouts, Sampling
from megarl.drift.diagnosis.side import EngineSide

PLAIN = Sampling()
_PROMPTS = 24
_PROMPT_TOKENS = (6, 26)
_RESPONSE_TOKENS = 40


@dataclass
class Scene:
    """What a fault works on; it begins without one.

    Attributes:
        seed: of everything random here.
        dtype: of both sides.
        versions: the trainer's models, newest first.
        generator: what draws.
        sampling: what the trainer believes.
        engine: generates.
        side: what the engine can be asked; None for nothing.
        samples: responses to each prompt.
    """

    seed: int
    dtype: Dtype
    versions: list[Any]
    generator: torch.Generator
    sampling: Sampling
    engine: PlantedEngine
    side: EngineSide | None = None
    samples: int = 1

    @staticmethod
    def build(family: str, seed: int, dtype: Dtype, sampling: Sampling = PLAIN) -> "Scene":
        """A scene without a fault."""
        versions = small_models(family, seed, dtype)
        generator = torch.Generator().manual_seed(10_000 + seed)
        return Scene(seed, dtype, versions, generator, sampling, PlantedEngine(versions[0], sampling, sampling))

    @property
    def model(self) -> TransformersModel:
        """What experiments are run on."""
        return TransformersModel(self.versions, self.dtype, openers=((BEGIN,), (BEGIN, BEGIN), OPENER))

    def choose(self, count: int) -> int:
        """A number below `count`."""
        return int(torch.randint(count, (), generator=self.generator))

    def rollouts(self) -> Rollouts:
        """The engine generates, and the trainer scores by one right-padded pass of transformers' own."""
        low, high = _PROMPT_TOKENS
        lengths = torch.randint(low, high, (_PROMPTS,), generator=self.generator).tolist()
        prompts = [torch.randint(STOP + 1, VOCAB, (length,), generator=self.generator).tolist() for length in lengths]
        prompts = [prompt for prompt in prompts for _ in range(self.samples)]
        responses, reported = self.engine.generate(prompts, _RESPONSE_TOKENS, self.generator)
        rollouts = laid_out(prompts, responses, reported, self.sampling)
        return replace(rollouts, trainer_log_probs_BT=self.trainer_log_probs(rollouts))

    @torch.no_grad()
    def trainer_log_probs(self, rollouts: Rollouts) -> Tensor:
        """[B, T], NaN outside the responses."""
        width = rollouts.ids_BT.shape[1]
        mask_BT = (torch.arange(width) < rollouts.lengths_B[:, None]).long()
        logits_BTV = self.versions[0](input_ids=rollouts.ids_BT, attention_mask=mask_BT).logits
        return scored(rollouts, logits_BTV[:, :-1][rollouts.mask_BT[:, 1:]])


def laid_out(
    prompts: list[list[int]], responses: list[list[int]], reported: list[list[float]], sampling: Sampling
) -> Rollouts:
    """Rollouts whose trainer has not scored yet."""
    sequences = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    width = max(map(len, sequences))
    ids_BT = torch.tensor([sequence + [PAD] * (width - len(sequence)) for sequence in sequences])
    nothing = float("nan")
    said = [
        [nothing] * len(prompt) + given + [nothing] * (width - len(prompt) - len(given))
        for prompt, given in zip(prompts, reported, strict=True)
    ]
    log_probs_BT = torch.tensor(said, dtype=torch.float64)
    return Rollouts(
        ids_BT,
        torch.tensor(list(map(len, prompts))),
        torch.tensor(list(map(len, sequences))),
        log_probs_BT,
        torch.full_like(log_probs_BT, nothing),
        sampling,
        STOP,
    )


def scored(rollouts: Rollouts, logits_NV: Tensor) -> Tensor:
    """[B, T]: the log-probs of the responses' tokens under the trainer's sampling, NaN elsewhere."""
    laid_BT = torch.full(rollouts.ids_BT.shape, float("nan"), dtype=torch.float64)
    laid_BT[rollouts.mask_BT] = Distributions(logits_NV.float(), rollouts.targets_N).log_probs(rollouts.sampling)
    return laid_BT

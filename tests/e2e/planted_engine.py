"""Faults of an engine, planted in the process of a run."""

from dataclasses import replace

import torch
from torch import Tensor

from megarl.cli import main
from megarl.rollout import embedded
from megarl.rollout.types import Completion


def faulty(argv: list[str], fault: str) -> int:
    """`main`, beside an embedded engine with a fault; '' for none."""
    real_sample, real_generate = embedded.sample, embedded.EmbeddedEngine.generate

    def sample(
        logits_BV: Tensor, temperature: float, uniforms_B: Tensor | None, top_p: float, top_k: int, **how: bool
    ) -> tuple[Tensor, Tensor]:
        if fault == "temperature":
            return real_sample(logits_BV, 0.7 * temperature, uniforms_B, top_p, top_k, **how)
        if fault == "top-p":
            return real_sample(logits_BV, temperature, uniforms_B, 0.8, top_k, **how)
        tokens_B, log_probs_B = real_sample(logits_BV, temperature, uniforms_B, top_p, top_k, **how)
        if fault == "raw":
            log_probs_B = torch.log_softmax(logits_BV.float(), dim=-1).gather(-1, tokens_B[:, None])[:, 0]
        return tokens_B, log_probs_B

    def generate(*given: object) -> list[Completion]:
        answers = real_generate(*given)  # type: ignore[arg-type]
        if fault == "late":
            return [replace(one, log_probs=(None, *one.log_probs[:-1])) for one in answers]
        return answers

    embedded.sample, embedded.EmbeddedEngine.generate = sample, generate  # type: ignore[assignment, method-assign]
    return main(argv)

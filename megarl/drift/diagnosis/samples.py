"""Tokens that look drawn from another distribution than the one that their log-probs are of."""

from collections.abc import Iterator
from dataclasses import replace

from megarl.drift.diagnosis.case import Bench
from megarl.drift.diagnosis.distance import DECIDES
from megarl.drift.diagnosis.finding import Finding

_TEMPERATURES = tuple(0.05 * step for step in range(4, 41))


def findings_from_samples(bench: Bench) -> Iterator[Finding]:
    """Where both sides' log-probs agree, the engine may still sample from something else and not report it."""
    sampling = bench.rollouts.sampling
    surprise = bench.plain.surprise(sampling)
    if abs(surprise) <= DECIDES:
        return
    fitted = min(_TEMPERATURES, key=lambda one: abs(bench.plain.surprise(replace(sampling, temperature=one))))
    yield Finding(
        "raw_log_probs",
        "engine",
        0.0,
        f"the log-probs agree, but the engine's tokens are likelier than draws from them: {surprise:+.1f} standard "
        f"errors; a temperature near {fitted:.2g}, or a top-p or top-k, would draw such tokens"
        if surprise > 0
        else f"the log-probs agree, but the engine's tokens are rarer than draws from them: {surprise:+.1f} standard "
        f"errors; a temperature near {fitted:.2g} would draw such tokens",
        "have the engine report processed log-probs (vLLM: --logprobs-mode processed_logprobs), and send every "
        "sampling setting with each request",
    )

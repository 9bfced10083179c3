"""A side's log-probs are renormalised over what top-p or top-k leaves, and the other's are not."""

from collections.abc import Iterator
from dataclasses import replace

from megarl.drift.diagnosis.case import Case, Hypothesis
from megarl.drift.diagnosis.causes.raw_log_probs import looks_raw
from megarl.drift.diagnosis.computation import Computation
from megarl.drift.diagnosis.fit import fit_temperature, fit_top_k, fit_top_p
from megarl.drift.diagnosis.rollouts import Sampling

_USUAL = (0.6, 0.7, 0.8, 0.9)
"""Temperatures that models' own generation settings have beside a top-p."""


class Truncation:
    """Top-p and top-k are fitted at the temperature asked for, then top-p at others."""

    name = "truncation"

    def hypotheses(self, case: Case) -> Iterator[Hypothesis]:
        """See `Cause`."""
        if looks_raw(case):
            return
        plain, target_N = case.bench.plain, case.target_N
        asked = case.bench.rollouts.sampling
        found = [replace(asked, top_p=fit_top_p(plain, asked.temperature, target_N), top_k=0)]
        found.append(replace(asked, top_k=fit_top_k(plain, asked.temperature, target_N), top_p=1.0))
        if asked.top_p < 1 or asked.top_k:
            found.append(Sampling(asked.temperature))
        for sampling in found:
            yield Hypothesis(Computation(), sampling)
        tried = [Hypothesis(Computation(), sampling) for sampling in found]
        if any(case.explains(one, case.after(one)) for one in tried):
            return
        for temperature in (*_USUAL, fit_temperature(plain, target_N)):
            sampling = Sampling(temperature, fit_top_p(plain, temperature, target_N))
            yield Hypothesis(Computation(), sampling)

    def words(self, case: Case, best: Hypothesis) -> tuple[str, str]:
        """See `Cause`."""
        asked, is_of = case.bench.rollouts.sampling, best.sampling
        narrower = is_of if is_of.top_p < 1 or is_of.top_k else asked
        mass = case.bench.plain.kept_mass(narrower)
        other = f", temperature {is_of.temperature:.4g} for {asked.temperature:.4g}"
        return (
            f"its log-probs are those with {_named(is_of)}, and {_named(asked)} was asked for"
            f"{other if is_of.temperature != asked.temperature else ''}; {_named(narrower)} keeps a mass of {mass:.4g} "
            "of the full vocabulary on average, which is the ratio that the two sides' probabilities have",
            "give both sides the same top-p and top-k (rollout.top_p, rollout.top_k), so that the trainer renormalises "
            "over the same tokens, or sample from the full vocabulary",
        )


def _named(sampling: Sampling) -> str:
    parts = [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    parts += [f"top-k {sampling.top_k}"] if sampling.top_k else []
    return " and ".join(parts) or "no truncation"

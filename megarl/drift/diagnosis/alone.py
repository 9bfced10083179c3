"""The tree for a dump alone: what both sides' log-probs tell of each other without a model."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from megarl.drift.diagnosis.case import shifted
from megarl.drift.diagnosis.contexts import Contexts
from megarl.drift.diagnosis.distance import DECIDES, EXPLAINS, Distance
from megarl.drift.diagnosis.draws import Draws, excess
from megarl.drift.diagnosis.finding import Alone, Diagnosis, Finding, Who
from megarl.drift.diagnosis.fit import fit_slope
from megarl.drift.diagnosis.reported import Reported
from megarl.drift.diagnosis.tokens import findings_from_stop
from megarl.drift.diagnosis.words_alone import (
    off_by_one_words,
    other_draws_words,
    temperature_words,
    truncation_words,
    undecided,
)

FEWEST = math.floor(DECIDES**2) + 1
"""Comparisons of which all must be nearer for a sign test to decide."""


@dataclass(frozen=True)
class Look:
    """What every hint is told from.

    Attributes:
        reported: the tokens.
        drift: trainer less engine.
        contexts: those that several tokens share.
        engine: whether the tokens look drawn from the engine's log-probs, by how they repeat.
        trainer: likewise from the trainer's.
    """

    reported: Reported
    drift: Distance
    contexts: Contexts
    engine: Draws
    trainer: Draws

    @staticmethod
    def at(reported: Reported) -> "Look":
        """A dump."""
        contexts = Contexts.of(reported)
        return Look(
            reported,
            Distance.between(reported.trainer_N, reported.engine_N),
            contexts,
            Draws.of(contexts, reported.engine_N),
            Draws.of(contexts, reported.trainer_N),
        )

    @property
    def drawn_from(self) -> str:
        """'engine', 'trainer', or '' where the tokens fit the log-probs of both or of neither."""
        fits = [
            abs(side.errors) <= DECIDES and excess(log_ratio_N) <= DECIDES
            for side, log_ratio_N in ((self.engine, self.drift.log_ratio_N), (self.trainer, -self.drift.log_ratio_N))
        ]
        return {(True, False): "engine", (False, True): "trainer"}.get((fits[0], fits[1]), "")


def diagnose_alone(reported: Reported) -> Diagnosis:
    """Names what makes the two sides' log-probs differ, as far as these tell it."""
    look = Look.at(reported)
    findings = list(findings_from_stop(reported))
    if not findings:
        found = [*_off_by_one(look), *_temperature(look), *_truncation(look)]
        findings = sorted(found, key=lambda finding: -finding.score)[:1] or list(_other_draws(look))
    contrasts = int(look.contexts.later_P.sum())
    alone = Alone(
        look.contexts.repeated(reported.engine_N),
        look.contexts.repeated(reported.trainer_N),
        contrasts,
        tuple(undecided(contrasts, look.engine.contexts, FEWEST)),
    )
    tokens = int((~look.drift.log_ratio_N.isnan()).sum())
    return Diagnosis(tokens, look.drift.mean, None, None, None, tuple(findings), alone)


def _explained(before: Distance, after: Distance) -> float | None:
    """The share that is gone, where that decides; see `Case.explains`."""
    share = after.explained(before)
    return share if after.nearer_than(before) > DECIDES and share > EXPLAINS else None


def _off_by_one(look: Look) -> Iterator[Finding]:
    reported = look.reported
    for by in (1, -1):
        moved_N = shifted(reported.rows_N, reported.engine_N, by)
        after = Distance.between(reported.trainer_N, moved_N)
        # of the same tokens: the last, or first, of each response has nothing to be compared with
        before = Distance(look.drift.log_ratio_N.where(~after.log_ratio_N.isnan(), math.nan))
        share = _explained(before, after)
        if share is not None:
            evidence, fix = off_by_one_words(by, before, after, share)
            yield Finding("off_by_one", "either", share, evidence, fix)


def _temperature(look: Look) -> Iterator[Finding]:
    """Two logits of one context differ by a temperature's reciprocal times the same on both sides."""
    contexts = look.contexts
    engine_K, trainer_K = contexts.contrasts(contexts.engine_P), contexts.contrasts(contexts.trainer_P)
    if len(engine_K) < FEWEST:
        return
    ratio = fit_slope(engine_K, trainer_K)
    before, after = Distance.between(trainer_K, engine_K), Distance.between(trainer_K, ratio * engine_K)
    share = _explained(before, after)
    if share is not None and ratio > 0:
        raw = look.drawn_from == "trainer"
        evidence, fix = temperature_words(look.reported.sampling, ratio, len(engine_K), share, look.drawn_from)
        yield Finding("raw_log_probs" if raw else "temperature", "engine" if raw else "either", share, evidence, fix)


def _truncation(look: Look) -> Iterator[Finding]:
    """What is renormalised over a part of the vocabulary moves all tokens of a context by one number: its mass."""
    contexts = look.contexts
    ratio_P = contexts.trainer_P - contexts.engine_P
    contrast_K = contexts.contrasts(ratio_P)
    if len(contrast_K) < FEWEST:
        return
    before = Distance(ratio_P[contexts.later_P])
    share = _explained(before, Distance(contrast_K))
    if share is None or not before.is_biased:
        return
    engine_is_narrower = before.bias < 0
    narrower_N = look.drift.log_ratio_N if engine_is_narrower else -look.drift.log_ratio_N
    mass, least = _kept_mass(narrower_N)
    asked = look.reported.sampling
    truncates = asked is not None and (asked.top_p < 1 or asked.top_k > 0)
    raw = truncates and not engine_is_narrower
    side: Who = "either" if asked is None else "engine" if raw or (engine_is_narrower and not truncates) else "trainer"
    evidence, fix = truncation_words(
        asked, len(contrast_K), share, mass, least, raw=raw, engine_is_narrower=engine_is_narrower
    )
    yield Finding("raw_log_probs" if raw else "truncation", side, share, evidence, fix)


def _kept_mass(log_mass_N: Tensor) -> tuple[float, float]:
    """Mean over tokens, and the least."""
    mass_M = log_mass_N[~log_mass_N.isnan()].exp()
    return float(mass_M.mean()), float(mass_M.min())


def _other_draws(look: Look) -> Iterator[Finding]:
    """Where no log-prob explains a drift, tokens may still be drawn from another distribution than that of either."""
    if min(abs(look.engine.errors), abs(look.trainer.errors)) <= DECIDES:
        return
    evidence, fix = other_draws_words(look.engine)
    yield Finding("raw_log_probs", "engine", 0.0, evidence, fix)

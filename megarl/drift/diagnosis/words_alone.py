"""What is said of a dump that is looked at alone."""

from collections.abc import Iterator

from megarl.drift.diagnosis.distance import Distance
from megarl.drift.diagnosis.draws import Draws
from megarl.drift.diagnosis.rollouts import Sampling

_DIAGNOSE = "megarl drift diagnose DUMP --model FOLDER [--older FOLDER ...]"
_MEASURE = "megarl drift measure RECIPE --trainer FOLDER --engine URL"
_PROCESSED = "have the engine report processed log-probs (vLLM: --logprobs-mode processed_logprobs)"


def off_by_one_words(by: int, before: Distance, after: Distance, share: float) -> tuple[str, str]:
    """Evidence and fix."""
    where = "before" if by > 0 else "behind"
    return (
        f"the engine's log-probs are the trainer's of the token one place {where}: moved by that place, their mean "
        f"distance goes from {before.mean:.3g} to {after.mean:.3g} nats a token ({share:.1%} explained)",
        "lay log-probs out at the tokens that they are of: the logits at position t are of token t + 1",
    )


def temperature_words(
    asked: Sampling | None, ratio: float, count: int, share: float, drawn_from: str
) -> tuple[str, str]:
    """Evidence and fix.

    Args:
        asked: None where it is not known.
        ratio: the engine's temperature over the trainer's.
        count: differences it is told by.
        share: of their distance that it explains.
        drawn_from: the side whose draws the tokens look like; '' where that is not told.
    """
    both = (
        ""
        if asked is None
        else (
            f"; {asked.temperature:g} was asked for, so either the engine's are at {asked.temperature * ratio:.4g} or "
            f"the trainer's at {asked.temperature / ratio:.4g}"
        )
    )
    return (
        f"behind the same tokens, two tokens' log-probs differ {ratio:.4g} times as much at the trainer as at the "
        f"engine, as they do where the engine's temperature is {ratio:.4g} times the trainer's ({share:.1%} of what "
        f"{count} such differences are apart is explained){both}; {_DRAWN[drawn_from]}",
        "give both sides the same temperature (rollout.temperature), divide logits by it, not log-probs, and "
        + _PROCESSED,
    )


def truncation_words(
    asked: Sampling | None, count: int, share: float, mass: float, least: float, *, raw: bool, engine_is_narrower: bool
) -> tuple[str, str]:
    """Evidence and fix. Args: count: differences it is told by. mass, least: kept, in the mean and at one token."""
    narrower, wider = ("engine", "trainer") if engine_is_narrower else ("trainer", "engine")
    said = "" if asked is None else f"; asked for was {_named(asked)}"
    return (
        f"behind the same tokens the two sides are apart by one number, whatever the token ({share:.1%} explained, by "
        f"{count} differences): the {narrower}'s log-probs are renormalised over a part of the vocabulary that the "
        f"{wider}'s are not; it keeps a mass of {mass:.4g} on average and {least:.3g} at the least, so a top-p would "
        f"be of at most that{said}",
        _PROCESSED
        if raw
        else "give both sides the same top-p and top-k (rollout.top_p, rollout.top_k) and ban no token on one alone, "
        "or sample from the full vocabulary",
    )


def other_draws_words(engine: Draws) -> tuple[str, str]:
    """Evidence and fix."""
    how = "more" if engine.errors > 0 else "less"
    narrower = "a lower temperature, or a top-p or top-k," if engine.errors > 0 else "a higher temperature"
    return (
        f"no log-prob shows it, but tokens repeat {how} often behind the same tokens ({engine.equal:.1%}) than draws "
        f"from the log-probs would ({engine.expected:.1%}; {engine.errors:+.1f} standard errors): {narrower} would "
        "draw such tokens",
        f"{_PROCESSED}, and send every sampling setting with each request",
    )


def undecided(contrasts: int, contexts: int, fewest: int) -> Iterator[tuple[str, str]]:
    """What a dump alone leaves open, each with what decides it.

    Args:
        contrasts: differences of two tokens behind the same tokens.
        contexts: that several tokens share.
        fewest: of either that a test needs.
    """
    if min(contrasts, contexts) < fewest:
        yield (
            f"temperature, truncation and raw log-probs, which are told by tokens behind the same tokens: {contrasts} "
            f"differences in {contexts} places are here, and {fewest} of both are needed",
            "dump more responses a prompt (rl.samples_per_prompt), or " + _DIAGNOSE,
        )
    yield (
        "which side is wrong, and all that moves tokens by different numbers: weights, a tensor, precision, padding, "
        "positions, masks, caches, routing, another prompt",
        _DIAGNOSE,
    )
    yield "how far right computations may be apart", f"{_DIAGNOSE}; of the engine itself: {_MEASURE}"


_DRAWN = {
    "engine": "the tokens are draws from the engine's log-probs, not from the trainer's",
    "trainer": "the tokens are draws from the trainer's log-probs, not from the engine's",
    "": "whether the tokens are draws from the engine's log-probs or from the trainer's these do not tell",
}


def _named(sampling: Sampling) -> str:
    parts = [f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []
    parts += [f"top-k {sampling.top_k}"] if sampling.top_k else []
    return " and ".join(parts) or "no truncation"

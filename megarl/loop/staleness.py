"""How much older than the policy the weights were that wrote a step's responses."""

from collections.abc import Sequence

from megarl.rollout.types import Completion


def staleness_metrics(completions: Sequence[Completion], version: int, bound: int) -> dict[str, float]:
    """Ages of tokens, in updates of the weights.

    Args:
        completions: the step's responses.
        version: of the weights that the step trains.
        bound: largest age that the recipe allows.

    Returns:
        staleness/mean and staleness/older_tokens_share over tokens, staleness/max, and staleness/spanning_share over
        responses. Responses without a token count in none but the last.

    Raises:
        RuntimeError: a token is older than the bound, or younger than the policy.
    """
    spans = [span for completion in completions for span in completion.versions]
    tokens = sum(span.end - span.start for span in spans)
    ages = [version - span.version for span in spans]
    if ages and not 0 <= min(ages) <= max(ages) <= bound:
        raise RuntimeError(
            f"a step that trains version {version} got tokens {min(ages)} to {max(ages)} versions old, not 0 to {bound}"
        )
    older = sum(span.end - span.start for span in spans if span.version < version)
    aged = sum((version - span.version) * (span.end - span.start) for span in spans)
    spanning = sum(len({span.version for span in completion.versions}) > 1 for completion in completions)
    return {
        "staleness/mean": aged / max(tokens, 1),
        "staleness/max": float(max(ages, default=0)),
        "staleness/older_tokens_share": older / max(tokens, 1),
        "staleness/spanning_share": spanning / len(completions),
    }

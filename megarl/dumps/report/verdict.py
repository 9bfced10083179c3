"""What a dump's drift means for training, in plain words.

The levels are conventions, which docs/drift_report.md gives. k-hat is the shape of the weights' tail and not its size:
weights that all lie within 1e-6 of 1 have one too, so it counts only where the weights cost samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from megarl.drift.auto import Level, asked_level
from megarl.drift.pareto import RELIABLE_K
from megarl.dumps.measured import Measured
from megarl.observe.table import format_number

SEVERE_ESS, MODERATE_ESS = 0.5, 0.95
SEVERE_ABOVE_LN2, MODERATE_ABOVE_LN2 = 0.01, 0.001
MODERATE_OUTSIDE_BAND = 0.01
GROWS = 3.0
"""Times that the mean |Delta| of one group of tokens exceeds another's before it is said."""
ENOUGH_TOKENS = 100
"""Of a group, before it is compared with another."""
ENOUGH_FOR_SHARES = 1000
"""Tokens of a dump, before one in a thousand of them is spoken of."""

HEADLINES = {
    "none": "No drift: trainer and engine gave the same log-probs, bit for bit.",
    "small": "Small drift: it costs hardly any samples.",
    "moderate": "Moderate drift: train with a correction.",
    "severe": "Severe drift: find its cause before training on.",
}
ADVICE = {
    "none": "Nothing is to be done.",
    "small": (
        "Compare the mean with the floor of your precision, which a sound run does not exceed: docs/precision.md has "
        "some, megarl drift budget measures yours."
    ),
    "moderate": "The table of corrections says what each would leave.",
    "severe": (
        "No correction makes up for a fault; megarl drift diagnose looks for it. Until its cause is found, a geometric "
        "rejection or a veto leaves out the responses that it hits; the table of corrections says how many."
    ),
}


@dataclass(frozen=True)
class Verdict:
    """A verdict.

    Attributes:
        level: a key of `HEADLINES`.
        reasons: sentences with the numbers behind it.
        automatic: what `drift.correction: auto` picks for a step with these measures, and why.
    """

    level: str
    reasons: list[str]
    automatic: str

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        return HEADLINES[self.level]

    @property
    def advice(self) -> str:
        """What to do about it."""
        return f"{ADVICE[self.level]} {self.automatic}"


def verdict(found: Measured, numbers: Mapping[str, float]) -> Verdict:
    """The verdict on a dump. Args: found: its counts. numbers: its measures, by the names of `drift/...`."""
    picked, why = asked_level(numbers)
    name = "no correction" if picked == Level.NONE else picked.name.lower()
    return Verdict(
        level=_level(numbers),
        reasons=[*_on_tokens(found, numbers), *_on_weights(found, numbers), *_on_groups(numbers)],
        automatic=f"drift.correction=auto picks {name} for such a step: {why}.",
    )


def _level(numbers: Mapping[str, float]) -> str:
    ess, above_ln2 = numbers["ess_share"], numbers["abs_above_ln2_share"]
    unreliable = ess < MODERATE_ESS and numbers.get("pareto_k", 0.0) > RELIABLE_K
    if numbers["abs_max"] == 0:
        return "none"
    if unreliable or ess < SEVERE_ESS or above_ln2 > SEVERE_ABOVE_LN2:
        return "severe"
    outside = numbers["outside_band_share"] > MODERATE_OUTSIDE_BAND
    return "moderate" if outside or ess < MODERATE_ESS or above_ln2 > MODERATE_ABOVE_LN2 else "small"


def _on_tokens(found: Measured, numbers: Mapping[str, float]) -> list[str]:
    tokens = len(found.ratios.log_ratio_N)
    sentences = _on_sizes(tokens, numbers) if numbers["abs_max"] else [f"The Delta of {_count(tokens, 'token')} is 0."]
    if tokens < ENOUGH_FOR_SHARES:
        sentences.append(f"These are the numbers of {_count(tokens, 'token')} alone: the verdict is a rough one.")
    if missing := found.tokens - tokens:
        sentences.append(
            f"{missing:,} of {found.tokens:,} tokens have no finite log-prob on both sides and are left out of all "
            "these numbers."
        )
    return sentences


def _on_sizes(tokens: int, numbers: Mapping[str, float]) -> list[str]:
    rarest = f"one in a thousand by more than {format_number(numbers['abs_p999'])}, "
    return [
        f"A token's two log-probs differ by {format_number(numbers['abs_mean'])} nats on average, "
        f"{rarest if tokens >= ENOUGH_FOR_SHARES else ''}the worst by {format_number(numbers['abs_max'])}.",
        f"{_percent(numbers['outside_band_share'])} of the tokens have a ratio outside 0.9 to 1.1, and "
        f"{_percent(numbers['abs_above_ln2_share'])} one that is off by more than a factor of 2.",
    ]


def _on_weights(found: Measured, numbers: Mapping[str, float]) -> list[str]:
    count, ess = len(found.tokens_R), numbers["ess_share"]
    sentences = [
        f"Weighed by e to the sum of {'its' if count == 1 else 'their'} Delta, {_count(count, 'response')} "
        f"{'is' if count == 1 else 'are'} worth {ess * count:,.0f} (effective sample size {_percent(ess)})."
    ]
    k = numbers.get("pareto_k")
    if k is None:
        sentences.append("They are too few, or too much alike, for a Pareto k-hat of these weights.")
    elif ess >= MODERATE_ESS:
        sentences.append(f"The k-hat of these weights is {k:.2f}; while they cost no samples it does not matter.")
    else:
        side = "above" if k > RELIABLE_K else "not above"
        means = "no mean of them can be trusted" if k > RELIABLE_K else "a mean of them can be trusted"
        sentences.append(f"The k-hat of these weights is {k:.2f}, {side} {RELIABLE_K}: {means}.")
    return sentences


def _on_groups(numbers: Mapping[str, float]) -> list[str]:
    sentences = []
    positions = groups(numbers, "position_")
    if len(positions) > 1 and positions[-1][1] > GROWS * positions[0][1]:
        first, last = positions[0], positions[-1]
        sentences.append(
            f"Drift grows along the response: mean |Delta| is {format_number(first[1])} nats at its start and "
            f"{format_number(last[1])} from token {last[0].split('_')[1]} on."
        )
    likely = groups(numbers, "probability_")
    if len(likely) > 1 and likely[0][1] > GROWS * likely[-1][1]:
        low = likely[0]
        sentences.append(
            f"Drift sits on unlikely tokens: mean |Delta| is {format_number(low[1])} nats below a probability of "
            f"{low[0].split('_')[2]} %, and {format_number(likely[-1][1])} on the likeliest."
        )
    return sentences


def groups(numbers: Mapping[str, float], prefix: str) -> list[tuple[str, float]]:
    """Name and mean |Delta| of the groups of that kind with enough tokens, in their order."""
    names = [name.removesuffix("/tokens") for name in numbers if name.startswith(prefix) and name.endswith("/tokens")]
    return [(n, numbers[f"{n}/abs_mean"]) for n in names if numbers[f"{n}/tokens"] >= ENOUGH_TOKENS]


def _count(number: int, name: str) -> str:
    return f"1 {name}" if number == 1 else f"{number:,} {name}s"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"

"""Every measure of drift from its definition, token by token in Python floats, sums without rounding."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

from torch import Tensor

from tests.unit.drift.exact_pareto import exact_pareto_k

LARGEST = 1.7976931348623157e308
QUANTILES = {"abs_p50": "0.5", "abs_p90": "0.9", "abs_p99": "0.99", "abs_p999": "0.999"}
POSITIONS = {
    "position_0_15": (0, 15),
    "position_16_63": (16, 63),
    "position_64_255": (64, 255),
    "position_256_1023": (256, 1023),
    "position_1024_4095": (1024, 4095),
    "position_4096_up": (4096, math.inf),
}
PROBABILITIES = {
    "probability_0_1": (0.0, 0.01),
    "probability_1_10": (0.01, 0.1),
    "probability_10_50": (0.1, 0.5),
    "probability_50_90": (0.5, 0.9),
    "probability_90_99": (0.9, 0.99),
    "probability_99_100": (0.99, 2.0),
}


@dataclass(frozen=True)
class Token:
    """A token that both sides have a log-prob of."""

    trainer: float
    rollout: float
    position: int
    column: tuple[int, int]

    @property
    def log_ratio(self) -> float:
        return self.trainer - self.rollout


def responses(trainer: Tensor, rollout: Tensor, mask: Tensor) -> list[list[Token]]:
    """The batch's tokens, response by response; responses without one are left out."""
    found = []
    for row, (own, theirs, given) in enumerate(zip(trainer.tolist(), rollout.tolist(), mask.tolist(), strict=True)):
        columns = [column for column, generated in enumerate(given) if generated]
        tokens = [Token(own[c], theirs[c], position, (row, c)) for position, c in enumerate(columns)]
        tokens = [token for token in tokens if math.isfinite(token.trainer) and math.isfinite(token.rollout)]
        found += [tokens] if tokens else []
    return found


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def exp(value: float) -> float:
    return math.exp(value) if value < 709.7 else math.inf


def k3(log_ratio: float) -> float:
    """e^D - 1 - D; by its series where the difference would keep few digits."""
    if abs(log_ratio) > 0.1:
        return exp(log_ratio) - 1 - log_ratio
    return math.fsum(log_ratio**n / math.factorial(n) for n in range(2, 14))


def effective_share(log_weights: Sequence[float]) -> float:
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 40, 10**9, -(10**9)
        weights = [Decimal(value).exp() for value in log_weights]
        return float(sum(weights) ** 2 / sum(w * w for w in weights) / len(weights))


def pearson(tokens: Sequence[Token]) -> float | None:
    x, y = [math.exp(t.trainer) for t in tokens], [math.exp(t.rollout) for t in tokens]
    mean_x, mean_y = mean(x), mean(y)
    xx, yy = math.fsum((v - mean_x) ** 2 for v in x), math.fsum((v - mean_y) ** 2 for v in y)
    if xx == 0 or yy == 0:
        return None
    return math.fsum((v - mean_x) * (w - mean_y) for v, w in zip(x, y, strict=True)) / math.sqrt(xx) / math.sqrt(yy)


def group(tokens: Sequence[Token]) -> dict[str, float]:
    """The four measures of a group; nothing for an empty one."""
    if not tokens:
        return {}
    deltas = [token.log_ratio for token in tokens]
    return {
        "tokens": float(len(tokens)),
        "abs_mean": mean(map(abs, deltas)),
        "k1": -mean(deltas),
        "k3": mean(map(k3, deltas)),
    }


def groups(tokens: Sequence[Token], belongs: dict[str, Callable[[Token], bool]]) -> dict[str, float]:
    return {
        f"{name}/{measure}": value
        for name, member in belongs.items()
        for measure, value in group([token for token in tokens if member(token)]).items()
    }


def exact_drift(trainer: Tensor, rollout: Tensor, mask: Tensor) -> dict[str, float]:
    """All measures that need no more than log-probs."""
    rows = responses(trainer, rollout, mask)
    tokens = [token for row in rows for token in row]
    generated = float(mask.sum())
    counts = {
        "tokens": generated,
        "tokens_without_log_prob": generated - len(tokens),
        "responses": float(len(rows)),
    }
    if not tokens:
        return counts
    deltas = [token.log_ratio for token in tokens]
    absolute = sorted(map(abs, deltas))
    sums = [math.fsum(token.log_ratio for token in row) for row in rows]
    means = [total / len(row) for total, row in zip(sums, rows, strict=True)]
    k_hats = {"pareto_k": exact_pareto_k(sums), "token_pareto_k": exact_pareto_k(deltas)}
    correlation = pearson(tokens)
    measures = {
        "abs_mean": mean(absolute),
        "abs_max": absolute[-1],
        **{name: absolute[math.ceil(Fraction(q) * len(absolute)) - 1] for name, q in QUANTILES.items()},
        "abs_above_ln2_share": mean(float(value > math.log(2)) for value in absolute),
        "outside_band_share": mean(float(not 0.9 <= exp(d) <= 1.1) for d in deltas),
        "k1": -mean(deltas),
        "k3": mean(map(k3, deltas)),
        "chi2": mean(math.expm1(min(d, 700.0)) ** 2 if d < 354 else math.inf for d in deltas),
        "mult_prob_error": mean(map(exp, absolute)),
        **({} if correlation is None else {"probability_pearson": correlation}),
        "sequence_sum_mean": mean(sums),
        "sequence_sum_abs_mean": mean(map(abs, sums)),
        "sequence_sum_abs_max": max(map(abs, sums)),
        "sequence_mean_abs_mean": mean(map(abs, means)),
        "sequence_mean_abs_max": max(map(abs, means)),
        "sequence_geometric_mean": mean(map(exp, means)),
        "ppl_trainer": mean(exp(-mean(token.trainer for token in row)) for row in rows),
        "ppl_rollout": mean(exp(-mean(token.rollout for token in row)) for row in rows),
        "ppl_ratio": mean(exp(-value) for value in means),
        "ess_share": effective_share(sums),
        "token_ess_share": effective_share(deltas),
        **{name: value for name, value in k_hats.items() if value is not None},
    }
    by_position = {
        name: (lambda t, low=low, high=high: low <= t.position <= high) for name, (low, high) in POSITIONS.items()
    }
    by_probability = {
        name: (lambda t, low=low, high=high: low <= math.exp(t.rollout) < high)
        for name, (low, high) in PROBABILITIES.items()
    }
    found = {**counts, **measures, **groups(tokens, by_position), **groups(tokens, by_probability)}
    return {name: min(value, LARGEST) for name, value in found.items()}

"""One target's log-probs against the model's: what causes share while they experiment."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from megarl.drift.diagnosis.computation import Computation, Dtype
from megarl.drift.diagnosis.distance import DECIDES, EXPLAINS, Distance
from megarl.drift.diagnosis.distribution import Distributions
from megarl.drift.diagnosis.errors import Errors
from megarl.drift.diagnosis.finding import Floor, Who
from megarl.drift.diagnosis.grid import Grid, Scored
from megarl.drift.diagnosis.rollouts import Rollouts, Sampling
from megarl.drift.diagnosis.side import Model

EXACT: dict[Dtype, Dtype] = {"fp32": "fp64", "bf16": "fp32", "fp16": "fp32"}
"""What stands for exact arithmetic beside each precision."""


@dataclass(frozen=True)
class Hypothesis:
    """What an experiment switches on: a way to compute, a sampling, or both.

    Attributes:
        computation: the way.
        sampling: of the log-probs.
        shift: a side's log-prob of a token is compared with the model's of the token so many places before it.
    """

    computation: Computation
    sampling: Sampling
    shift: int = 0


@dataclass
class Bench:
    """The model with what it computed for these rollouts.

    Attributes:
        model: runs experiments.
        rollouts: the tokens.
    """

    model: Model
    rollouts: Rollouts
    _last: tuple[Computation, Distributions] | None = field(default=None, repr=False)
    _scored: dict[Hypothesis, Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def plain(self) -> Distributions:
        """By the trainer's own computation."""
        return Distributions(self.model.logits(self.rollouts, Computation()), self.rollouts.targets_N)

    def distributions(self, computation: Computation) -> Distributions:
        """By a computation; the last one is kept."""
        if computation == Computation():
            return self.plain
        if self._last is None or self._last[0] != computation:
            logits_NV = self.model.logits(self.rollouts, computation)
            self._last = (computation, Distributions(logits_NV, self.rollouts.targets_N))
        return self._last[1]

    def log_probs(self, hypothesis: Hypothesis) -> Tensor:
        """fp64 [N]; kept, as both sides are compared with the same experiments."""
        if hypothesis not in self._scored:
            scored_N = self.distributions(hypothesis.computation).log_probs(hypothesis.sampling)
            self._scored[hypothesis] = scored_N
        return self._scored[hypothesis]

    @cached_property
    def baseline_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """The log-probs that the trainer is to report, fp64."""
        return self.plain.log_probs(self.rollouts.sampling)

    @cached_property
    def exact_N(self) -> Tensor:  # noqa: N802 - a tensor, named by its shape
        """The same in the precision that stands for exact arithmetic, fp64."""
        exact = Computation(dtype=EXACT[self.model.traits.dtype])
        return self.log_probs(Hypothesis(exact, self.rollouts.sampling))

    def floor(self, engine: float | None) -> Floor:
        """Of this model on these tokens."""
        alone_N = self.log_probs(Hypothesis(Computation(rows_at_once=1), self.rollouts.sampling))
        return Floor(
            Distance.between(self.baseline_N, self.exact_N).mean,
            Distance.between(self.baseline_N, alone_N).mean,
            engine,
            EXACT[self.model.traits.dtype],
        )


def shifted(rows_N: Tensor, values_N: Tensor, by: int) -> Tensor:
    """Each token's value from the token `by` places behind it in the same response; NaN where there is none."""
    rolled_N = values_N.roll(-by)
    same_N = rows_N.roll(-by) == rows_N
    count = len(values_N)
    same_N[slice(count - by, count) if by > 0 else slice(0, -by)] = False
    return rolled_N.where(same_N, math.nan)


@dataclass(frozen=True)
class Case:
    """A side whose log-probs are to be explained.

    Attributes:
        bench: the model and the tokens.
        who: the side.
        target_N: its log-probs, in nats, fp64; NaN where it has none.
        floor: of the model.
    """

    bench: Bench
    who: Who
    target_N: Tensor
    floor: Floor

    @cached_property
    def before(self) -> Distance:
        """The model's distance from the side, with nothing switched on."""
        return Distance.between(self.bench.baseline_N, self.target_N)

    def after(self, hypothesis: Hypothesis) -> Distance:
        """The distance that an experiment leaves."""
        target_N = self.target_N
        if hypothesis.shift:
            target_N = shifted(self.bench.rollouts.rows_N, target_N, hypothesis.shift)
        return Distance.between(self.bench.log_probs(hypothesis), target_N)

    def explains(self, hypothesis: Hypothesis, after: Distance) -> bool:
        """Whether the distance that an experiment left is so much smaller that it names a cause.

        It must be smaller for more tokens than chance allows, and either half of the mean is gone, or the bias is: that
        of a drift which rounding hides token by token, such as a small mass left out. Of another precision, whose own
        rounding cannot be reproduced bit by bit, see `Errors.alike`, and `grid` where that is told directly.
        """
        is_nearer = after.nearer_than(self.before) > DECIDES
        if is_nearer and after.explained(self.before) > EXPLAINS:
            return True
        if hypothesis.computation.only_rounds:
            grid = self.grid(hypothesis) if is_nearer else None
            if grid is not None and (grid.is_on or grid.is_off):
                return grid.is_off
            return self.errors(hypothesis).alike(is_nearer=is_nearer)
        return is_nearer and self.before.is_biased and abs(after.bias) < (1 - EXPLAINS) * abs(self.before.bias)

    def grid(self, hypothesis: Hypothesis) -> Grid | None:
        """How the side's logits lie to the grid of the model's, where the hypothesis is that the side rounds none."""
        own = self.bench.model.traits.head
        if own not in ("bf16", "fp16") or hypothesis.computation != Computation(head="fp32"):
            return None
        exact = Computation(dtype=EXACT[self.bench.model.traits.dtype])
        scorings = (
            Scored(self.bench.distributions(one).drawn_N, self.bench.log_probs(Hypothesis(one, hypothesis.sampling)))
            for one in (hypothesis.computation, Computation(), exact)
        )
        wide, rounded, right = scorings
        temperature = hypothesis.sampling.temperature
        return Grid.of(self.target_N, temperature, own, wide=wide, rounded=rounded, exact=right)

    def errors(self, hypothesis: Hypothesis) -> Errors:
        """How the side errs, beside the model and a hypothesis."""
        return Errors.of(self.bench.exact_N, self.target_N, self.bench.baseline_N, self.bench.log_probs(hypothesis))

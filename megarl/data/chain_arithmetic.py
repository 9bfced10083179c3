"""Chains of sums, such as `17+5-8+6=`, with worked solutions and with guesses to imitate.

The task of the demo. A careful demonstration works the chain out, `17+5=22;22-8=14;14+6=20;\\boxed{20}`; a direct one
guesses, `\\boxed{23}`. A warm start on a mixture of both leaves a policy that can solve the task and rarely does.
"""

import random
from dataclasses import dataclass
from itertools import accumulate

from megarl.config.data import DataConfig
from megarl.config.fields import key
from megarl.config.refusal import refusal
from megarl.data.options import Range, parse_options
from megarl.data.problem import Problem
from megarl.data.template import fill_template

_LARGEST = 10**9
"""Bound of every number in a chain; longer ones fit no sensible context."""

# The slips of someone who adds in columns: off by one or two, or a carry lost.
_SLIPS = (1, -1, 2, -2, 10, -10)


@dataclass(frozen=True)
class ChainOptions:
    """`data.options` of this source."""

    terms: int = key(4, "Numbers in a chain.", low=2, high=64)
    first: Range = key((10, 29), "Range of the first number.", low=0, high=_LARGEST)
    operand: Range = key((1, 9), "Range of the other numbers.", low=1, high=_LARGEST)
    total: Range = key((10, 29), "Every running total stays in it.", low=0, high=_LARGEST)
    clean_until: float = key(0.78, "Share of the warm start that shows only worked, correct solutions.", low=0, high=1)
    careful: float = key(0.3, "Share of worked solutions after it; the others are direct guesses.", low=0, high=1)
    slip: float = key(0.03, "Probability of a wrong step in a worked solution.", low=0, high=1)
    hint: float = key(0.1, "Share of direct guesses that are right.", low=0, high=1)


@dataclass(frozen=True)
class Chain:
    """A chain: its first number and the signed numbers that follow."""

    first: int
    steps: tuple[int, ...]

    @property
    def prompt(self) -> str:
        """The chain as text, equals sign included."""
        return f"{self.first}{''.join(f'{step:+d}' for step in self.steps)}="

    @property
    def totals(self) -> list[int]:
        """Running totals, from the first number to the answer."""
        return list(accumulate(self.steps, initial=self.first))


def draw_chain(rng: random.Random, options: ChainOptions) -> Chain:
    """A random chain. A sign that would take the running total out of `options.total` is turned."""
    low, high = options.total
    total = first = rng.randint(*options.first)
    steps = []
    for _ in range(options.terms - 1):
        step = rng.randint(*options.operand) * rng.choice((1, -1))
        if not low <= total + step <= high:
            step = -step
        total += step
        steps.append(step)
    return Chain(first, tuple(steps))


def worked_solution(chain: Chain, slip: float, rng: random.Random, total: Range) -> str:
    """Every step written out, then the boxed result.

    Each step goes wrong with probability `slip`, and later steps carry its result on. Only slips that keep all later
    totals in `total` are made, so that a slip is the only error in its solution; where no slip would, none is made.
    """
    totals = chain.totals
    shift, shown, text = 0, chain.first, ""
    for position, step in enumerate(chain.steps, start=1):
        if rng.random() < slip:
            shift += _draw_slip([later + shift for later in totals[position:]], rng, total)
        result = totals[position] + shift
        text += f"{shown}{step:+d}={result};"
        shown = result
    return f"{text}\\boxed{{{shown}}}"


def direct_answer(chain: Chain, hint: float, rng: random.Random, total: Range) -> str:
    """The boxed result alone: right with probability `hint`, else near it or anywhere in `total`, evenly."""
    answer = chain.totals[-1]
    if rng.random() < hint:
        guess = answer
    elif rng.random() < 0.5:
        guess = answer + _draw_slip([answer], rng, total)
    else:
        guess = rng.randrange(total[0], total[1])
        guess += guess >= answer
    return f"\\boxed{{{guess}}}"


def _draw_slip(totals: list[int], rng: random.Random, total: Range) -> int:
    below, above = total[0] - min(totals), total[1] - max(totals)
    fitting = [slip for slip in _SLIPS if below <= slip <= above]
    return rng.choice(fitting) if fitting else 0


class ChainArithmetic:
    """The source. Evaluation problems are the same for every seed, so that seeds are compared on one test."""

    def __init__(self, seed: int, data: DataConfig) -> None:
        """Draws the evaluation problems.

        Raises:
            RecipeError: an option cannot be, or the options allow too few problems.
        """
        self._seed = seed
        self._template = data.prompt_template
        self._options = parse_options(ChainOptions, data.options, "chain_arithmetic")
        _check_ranges(self._options)
        chains = _evaluation_chains(self._options, data.eval_prompts)
        self._kept_out = frozenset(chains)
        self._evaluation = [self._problem(f"evaluation/{index}", chain) for index, chain in enumerate(chains)]

    def training(self, index: int) -> Problem:
        """The training problem at `index`."""
        chain, _ = self._draw("training", index)
        return self._problem(f"training/{index}", chain)

    def evaluation(self) -> list[Problem]:
        """The evaluation problems."""
        return list(self._evaluation)

    def demonstration(self, index: int, progress: float) -> tuple[Problem, str]:
        """A problem with a clean worked solution up to `clean_until`, then with one of the mixture."""
        options = self._options
        chain, rng = self._draw("demonstration", index)
        if progress < options.clean_until:
            response = worked_solution(chain, 0.0, rng, options.total)
        elif rng.random() < options.careful:
            response = worked_solution(chain, options.slip, rng, options.total)
        else:
            response = direct_answer(chain, options.hint, rng, options.total)
        return self._problem(f"demonstration/{index}", chain), response

    def _draw(self, stream: str, index: int) -> tuple[Chain, random.Random]:
        rng = random.Random(f"{self._seed}/chain_arithmetic/{stream}/{index}")
        # ends, since as many problems again as are kept out were found when the source was built
        while (chain := draw_chain(rng, self._options)) in self._kept_out:
            pass
        return chain, rng

    def _problem(self, name: str, chain: Chain) -> Problem:
        return Problem(name, fill_template(self._template, chain.prompt), str(chain.totals[-1]))


def _check_ranges(options: ChainOptions) -> None:
    (low, high), widest = options.total, options.operand[1]
    if not low <= options.first[0] <= options.first[1] <= high:
        reason = f"leaves data.options.total={list(options.total)}"
        raise refusal("data.options.first", list(options.first), reason, "narrow it or widen the total")
    # a total t has a way to go unless t + operand > high and t - operand < low
    if high - low < 2 * widest - 1:
        reason = f"leaves some totals no step by operands up to {widest}"
        fix = f"make it span at least {2 * widest - 1} or lower data.options.operand"
        raise refusal("data.options.total", list(options.total), reason, fix)


def _evaluation_chains(options: ChainOptions, wanted: int) -> list[Chain]:
    """Distinct chains; as many again have to turn up, so that training always has some left."""
    rng = random.Random("chain_arithmetic/evaluation")
    found: dict[Chain, None] = {}
    # no more chains than this can be, so that further draws would be for nothing
    firsts, operands = (high - low + 1 for low, high in (options.first, options.operand))
    most = firsts * (2 * operands) ** (options.terms - 1)
    for _ in range(20 * min(wanted, most) + 1000):
        found[draw_chain(rng, options)] = None
        if len(found) == 2 * wanted:
            return list(found)[:wanted]
    reason = f"leaves too little to train on, since data.options allow about {len(found)} problems"
    raise refusal("data.eval_prompts", wanted, reason, f"give at most {len(found) // 2} or widen the options")

"""A drift budget as rows of text, for the terminal and the page."""

import math
from collections.abc import Iterator, Mapping
from html import escape

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from megarl.drift.budget import Budget, Part
from megarl.dumps.report.table import Column, table

HEADS = ("part", "what is switched", "tokens", "mean |Delta|", "k3", "share")
_SWITCHED = 1
NOTE = (
    "Nats a token, plus or minus a standard error over responses. Shares are of k3, which adds up over independent "
    "parts; mean |Delta| does not. A floor is in every line, and no fix of a mistake goes below it."
)


def rows(budget: Budget) -> Iterator[tuple[str, ...]]:
    """The total, its parts, the remainder, and the floors."""
    yield _row(budget.total, "100 %" if budget.total.k3 > 0 else "-")
    for one in budget.parts:
        yield _row(one, _percent(budget.share(one)))
    share = budget.remainder / budget.total.k3 if budget.total.k3 > 0 else math.nan
    error = _number(budget.remainder, budget.remainder_error)
    yield ("remainder", "parts that go together or cancel", "", "", error, _percent(share))
    for one in budget.floors:
        yield _row(one, "")


def html(budget: Budget | None, numbers: Mapping[str, float]) -> str:
    """The page's section. Args: budget: None where there is no file of one. numbers: the dump's measures by name."""
    told = f'<p class="quiet">{escape(by_ages(numbers))}</p>'
    if budget is None:
        return told
    absent = "".join(f"<p>Not in it: {escape(line)}.</p>" for line in budget.absent)
    return f'<p class="quiet">{escape(NOTE)}</p>{_table(budget)}{absent}{told}'


def by_ages(numbers: Mapping[str, float]) -> str:
    """What the dump alone says: it knows how old the weights were that wrote each token."""
    fresh, ages = (
        numbers.get("age_0/k3"),
        [name for name in numbers if name.startswith("age_") and name.endswith("/k3")],
    )
    if fresh is None or len(ages) < 2:
        return (
            "The dump alone tells no parts: its tokens were written by weights of one age. megarl drift budget "
            "measures them."
        )
    whole = numbers["k3"]
    share = f"{_percent(1 - fresh / whole)} of it" if fresh < whole else "nothing of it"
    return (
        f"By the dump alone: k3 is {fresh:.3g} nats on tokens by the newest weights and {whole:.3g} on all, so older "
        f"weights make up {share}, were the tokens alike; what else it is made of, megarl drift budget measures."
    )


def _table(budget: Budget) -> str:
    return table([Column(head, number=place > 1) for place, head in enumerate(HEADS)], list(rows(budget)))


def show(budget: Budget, console: Console | None = None) -> None:
    """Prints it."""
    out = console or Console(highlight=False)
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    told = list(rows(budget))
    for place, head in enumerate(HEADS):
        if place != _SWITCHED:
            shown.add_column(head, justify="right" if place > 1 else "left", no_wrap=place > 1)
    for row in told:
        # as text: rich would take the [x] of a name for markup
        shown.add_row(*map(Text, (*row[:_SWITCHED], *row[_SWITCHED + 1 :])))
    out.print(shown)
    # in 80 columns there is no room for a sentence beside the numbers
    for row in told:
        out.print(f"{row[0]}: {row[_SWITCHED]}.", markup=False)
    out.print(NOTE, markup=False)
    for line in budget.absent:
        out.print(f"Not in it: {line}.", markup=False)


def _row(one: Part, share: str) -> tuple[str, ...]:
    return (
        one.name,
        one.switched,
        f"{one.tokens:,}",
        _number(one.abs_mean, one.abs_mean_error),
        _number(one.k3, one.k3_error),
        share,
    )


def _number(value: float, error: float) -> str:
    return f"{value:.3g}" if math.isnan(error) else f"{value:.3g} ± {error:.1g}"


def _percent(share: float) -> str:
    if math.isnan(share):
        return "-"
    return "< 0.01 %" if 0 < share < 1e-4 else f"{100 * share:.3g} %"

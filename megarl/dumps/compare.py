"""Two dumps side by side: do two runs, or two engines, drift alike?"""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from megarl.config.errors import UserError
from megarl.dumps.differences import UNITS, Difference, differences
from megarl.dumps.errors import DumpError
from megarl.dumps.measured import Measured, measured
from megarl.dumps.open import Dump, open_dump

FEWEST_RESPONSES = 8
"""Of a dump; with fewer the resamples are nearly always the same few."""


def compare(first: Path, second: Path, *, resamples: int, seed: int) -> list[Difference]:
    """Prints the two dumps' measures side by side and returns them.

    Args:
        first: a dump; see `open_dump`.
        second: another.
        resamples: of the bootstrap.
        seed: of its generator.

    Raises:
        UserError: fewer than 100 resamples.
        DumpError: a dump cannot be read or has too few responses, or the two were made with different tokenizers.
    """
    if resamples < 100:
        raise UserError(f"--resamples={resamples} is too few for a 95 % interval; give at least 100.")
    dumps = [open_dump(first), open_dump(second)]
    _check_tokenizers(*dumps)
    found = [_enough(dump) for dump in dumps]
    compared = differences(found[0], found[1], resamples, seed)
    _print(first, second, compared, [len(side.tokens_R) for side in found])
    return compared


def _check_tokenizers(first: Dump, second: Dump) -> None:
    if None not in (first.tokenizer, second.tokenizer) and first.tokenizer != second.tokenizer:
        raise DumpError(
            f"{first.path} and {second.path} were made with different tokenizers, so a token of the one is none of the "
            "other; compare dumps of one tokenizer."
        )


def _enough(dump: Dump) -> Measured:
    found = measured(dump)
    if len(found.tokens_R) < FEWEST_RESPONSES:
        raise DumpError(
            f"{dump.path} has {len(found.tokens_R)} responses to compare, and a bootstrap needs {FEWEST_RESPONSES}; "
            "name a dump with more."
        )
    return found


def _print(first: Path, second: Path, compared: list[Difference], responses: list[int]) -> None:
    table = Table(box=SIMPLE_HEAD, caption_justify="left")
    # in 80 columns: the unit goes below the measure, and no number is cut short
    table.add_column("measure", min_width=16)
    for name in ("first", "second", "difference, 95 %", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in compared:
        if row.first == row.first and row.second == row.second:
            interval = f"{row.low:+.3g} to {row.high:+.3g}"
            style = "bold" if row.differs else None
            table.add_row(
                f"{row.name}\n  {UNITS[row.name]}",
                f"{row.first:.4g}",
                f"{row.second:.4g}",
                interval,
                f"{row.p_value:.2g}",
                style=style,
            )
    console = Console()
    console.print(f"first:  {first}\nsecond: {second}", markup=False, highlight=False, soft_wrap=True)
    console.print(table)
    told = [row.name for row in compared if row.differs]
    found = f"They differ in {', '.join(told)}." if told else "No difference is beyond chance."
    console.print(f"{responses[0]:,} and {responses[1]:,} responses. {found}", markup=False)

"""From a dump to its report: numbers, verdict, page."""

import json
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from megarl.dumps.budget import budget_beside, read_budget
from megarl.dumps.errors import DumpError
from megarl.dumps.measured import measured
from megarl.dumps.open import open_dump
from megarl.dumps.report.budget import show
from megarl.dumps.report.verdict import Verdict, verdict
from megarl.dumps.report.words import MEASURES, shown
from megarl.dumps.statistics import statistics
from megarl.dumps.tokens import texts_of
from megarl.observe.files import encode_text, nonfinite_as_null, write_atomic


def write_report(
    path: Path,
    html: Path,
    *,
    tokenizer: Path | None = None,
    as_json: Path | None = None,
    budget: Path | None = None,
) -> None:
    """Reads a dump, prints its numbers and the verdict on it, and writes the page.

    Args:
        path: the dump; see `open_dump`.
        html: file to write; one that is there is replaced.
        tokenizer: folder in Hugging Face layout, for a dump that has no texts of its tokens.
        as_json: file for the numbers, the verdict and what each correction keeps; None for none.
        budget: file of a drift budget; None for the one that lies beside the dump, where one does.

    Raises:
        DumpError: the dump cannot be read, the tokenizer is another one, or a file cannot be written.
    """
    dump = open_dump(path)
    budget = budget_beside(path) if budget is None else budget
    parts = None if budget is None else read_budget(budget)
    pieces = texts_of(dump, tokenizer)
    found = measured(dump)
    numbers = statistics(found)
    judged = verdict(found, numbers)
    # Imported here: matplotlib takes a second, and a dump that is refused needs none of it.
    from megarl.dumps.report.page import page

    _write(html, page(dump, found, numbers, judged, pieces, parts))
    if as_json is not None:
        kept = [{**asdict(row), "candidate": row.candidate.keys} for row in found.kept]
        told = {"verdict": asdict(judged), "numbers": numbers, "kept": kept}
        _write(as_json, json.dumps(nonfinite_as_null(told), indent=2, allow_nan=False) + "\n")
    _print(numbers, judged)
    if parts is not None:
        Console().print(f"drift budget: {budget}", markup=False, highlight=False, soft_wrap=True)
        show(parts)
    Console().print(Text(f"report: {html}"), soft_wrap=True)


def _write(path: Path, text: str) -> None:
    try:
        write_atomic(path, encode_text(text))
    except OSError as error:
        raise DumpError(f"{path} cannot be written ({error.strerror}); name another file.") from error


def _print(numbers: dict[str, float], judged: Verdict) -> None:
    console = Console()
    table = Table(box=SIMPLE_HEAD)
    table.add_column("measure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("meaning")
    for name, (label, meaning) in MEASURES.items():
        if name in numbers:
            table.add_row(label, shown(name, numbers[name]), meaning)
    console.print(table)
    console.print(Text(judged.headline, "bold"))
    for reason in judged.reasons:
        console.print(Text(f"- {reason}"))
    console.print(Text(judged.advice))

"""Prints a pytest report in JUnit's XML as a table: test, outcome, seconds, and why it was skipped or failed."""

import sys
from pathlib import Path
from xml.etree import ElementTree

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """What became of a test, and the first line of the reason."""
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return kind, (found.get("message") or "").partition("\n")[0]
    return "passed", ""


def main(report: Path) -> None:
    """Prints the table; says so where pytest wrote no report."""
    if not report.exists() or report.stat().st_size == 0:
        sys.exit(f"{report} holds no report: pytest ended before it wrote one")
    table = Table("test", "outcome", "seconds", "why", box=SIMPLE_HEAD)
    for case in ElementTree.parse(report).iter("testcase"):
        kind, why = outcome(case)
        name = f"{case.get('classname', '').split('.')[-1]} {case.get('name')}"
        # a test's parameters stand in brackets, which rich would read as its own markup
        table.add_row(escape(name), kind, case.get("time"), escape(why))
    Console(width=160).print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

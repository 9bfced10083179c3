"""Tables of the report, as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Column:
    """A column. Attributes: head: its heading. number: whether it is set to the right."""

    head: str
    number: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """The table in a box that scrolls by itself, so that the page never does sideways; cells are plain text."""
    head = "".join(f"<th{_kind(column)}>{escape(column.head)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{_kind(c)}>{escape(cell)}</td>" for c, cell in zip(columns, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _kind(column: Column) -> str:
    return ' class="number"' if column.number else ""

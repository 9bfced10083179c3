"""Tables of the report, as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        head: its heading.
        number: whether it is set to the right.
        note: whether it explains the column before it, below whose cells it stands on a narrow screen.
    """

    head: str
    number: bool = False
    note: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """The table in a box that scrolls by itself, so that the page never does sideways; cells are plain text."""
    head = "".join(f"<th{_kind(column)}>{escape(column.head)}</th>" for column in columns)
    body = "".join(f"<tr>{_cells(columns, row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(columns: Sequence[Column], row: Sequence[str]) -> str:
    notes = [*(_note(column, cell) for column, cell in zip(columns[1:], row[1:], strict=True)), ""]
    cells = zip(columns, row, notes, strict=True)
    return "".join(f"<td{_kind(column)}>{escape(cell)}{note}</td>" for column, cell, note in cells)


def _note(column: Column, cell: str) -> str:
    # a number says nothing without its heading
    text = f"{column.head} {cell}" if column.number else cell
    return f'<span class="under">{escape(text)}</span>' if column.note else ""


def _kind(column: Column) -> str:
    kinds = [name for name, held in (("number", column.number), ("note", column.note)) if held]
    return f' class="{" ".join(kinds)}"' if kinds else ""

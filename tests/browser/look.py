"""What a browser makes of a page at one width."""

from dataclasses import dataclass
from pathlib import Path

from tests.browser.chromium import Tab

SMALLEST_PX = 12
"""Smaller text is hard to read on a telephone."""
SMALLEST_CONTRAST = 4.5
"""Of a text and what is behind it: level AA of WCAG 2.1, success criterion 1.4.3."""
SCRIPT = Path(__file__).with_suffix(".js").read_text("utf-8")


@dataclass(frozen=True)
class Look:
    """What is seen.

    Attributes:
        window: width of the page's window, CSS pixels.
        overflow: CSS pixels by which the page is wider.
        wider: elements whose content is wider than they are, so that it is cut or must be scrolled.
        outside: elements with a text that reaches beyond the window's right edge.
        small: those with a text smaller than `SMALLEST_PX`.
        faint: those with a text of less contrast than `SMALLEST_CONTRAST`.
        marks: coloured pixels of each picture without its legend, scaled to 600 x 460.
        text: the page's text as it is shown.
    """

    window: int
    overflow: int
    wider: list[str]
    outside: list[str]
    small: list[str]
    faint: list[str]
    marks: list[int]
    text: str


def look(tab: Tab, width: int) -> Look:
    """The page of a tab in a window of that width, CSS pixels."""
    tab.resize(width)
    return Look(**tab.evaluate(f"({SCRIPT})({SMALLEST_PX}, {SMALLEST_CONTRAST})"))

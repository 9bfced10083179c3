"""The report's page in a real browser: it asks for nothing, has no errors, and can be read on a telephone."""

import base64
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from megarl.cli import main
from megarl.dumps.report.heat import LONGEST_TOKEN
from tests.browser.chromium import Tab
from tests.browser.look import look
from tests.forked_runs import train
from tests.unit.dumps.made import rows, write, write_jsonl
from tests.unit.dumps.test_importers import verl

pytestmark = pytest.mark.browser

WIDTHS = (1280, 400)
PICTURES = 6
FEWEST_MARKS = 40
"""Coloured pixels: a single dot of radius 3 points has some 60."""
HOSTILE = [
    "<script>document.title = 'run'</script>",
    '"><img src=x onerror="document.title = 1">',
    "</div></body><h1>",
    "&lt;&amp;",
    "שלום",
    "مرحبا",
    "\u202eabc",
    "😀👩‍👩‍👧",
    "漢字",
    "\x00\x1b[31m",
    "\n",
    "w" * 2000,
    "{{7*7}}",
    "javascript:alert(1)",
]


def clean(folder: Path) -> Path:
    """Trainer and engine agree bit for bit."""
    return write(folder / "clean.parquet", rows([100] * 40, drift=0.0))


def small(folder: Path) -> Path:
    """What rounding does."""
    return write(folder / "small.parquet", rows([100] * 40, drift=1e-3))


def strong(folder: Path) -> Path:
    """Far apart, the more so the later; two servers, and weights of two ages."""
    columns = rows([400] * 64, drift=0.3, step=3)
    for row in range(64):
        columns["old_log_probs"][row] -= 0.01 * np.arange(400)
        columns["versions"][row] = [{"version": 1 + row % 2, "start": 0, "end": 400, "replica": row // 32}]
    pieces = {token: f" word{token}" for token in range(3, 403)}
    return write(folder / "strong.parquet", columns, step=3, pieces=pieces)


def one_response(folder: Path) -> Path:
    """Of another trainer, three tokens, without their texts."""
    return write_jsonl(folder / "one.jsonl", [verl()])


def one_token(folder: Path) -> Path:
    """One response of one token."""
    return write(folder / "token.parquet", rows([1]))


def huge(folder: Path) -> Path:
    """Ratios that no float holds, in a folder with a long name."""
    columns = rows([7] * 40, drift=0.0)
    columns["old_log_probs"][3][2] -= 800
    columns["rollout_log_probs"][4][2] -= 800
    return write(folder / ("long" * 30) / ("name" * 30 + ".parquet"), columns)


def hostile(folder: Path) -> Path:
    """Texts that would be markup, turn what is around them, or do not show."""
    columns = rows([len(HOSTILE)] * 40, drift=0.5)
    columns["prompt"] = [HOSTILE[row % len(HOSTILE)] for row in range(40)]
    columns["problem_id"] = [HOSTILE[row % len(HOSTILE)] for row in range(40)]
    return write(folder / "<b>&.parquet", columns, pieces=dict(enumerate(HOSTILE, start=3)))


def trained(folder: Path) -> Path:
    """The small model's own, of a run of two steps."""
    short = ("observe.dump_every=1", "rl.steps=2", "sft.steps=0", "evaluate.samples_per_prompt=0")
    finished = train(f"output_dir={folder / 'run'}", *short)
    assert finished.returncode == 0, finished.stderr
    return folder / "run"


@pytest.mark.parametrize("made", (clean, small, strong, one_response, one_token, huge, hostile, trained))
def test_the_page_opens_and_can_be_read(made: Callable[[Path], Path], tab: Tab, tmp_path: Path) -> None:
    page = report(made(tmp_path), tmp_path)
    tab.open(page)
    assert tab.complaints == []
    assert tab.requests[0] == page.as_uri()
    assert all(address.startswith("data:") for address in tab.requests[1:])
    for width in WIDTHS:
        seen = look(tab, width)
        assert seen.window == width and seen.overflow == 0
        assert (seen.wider, seen.outside, seen.small, seen.faint) == ([], [], [], [])
        assert len(seen.marks) == PICTURES and min(seen.marks) > FEWEST_MARKS
    assert tab.complaints == []


def test_hostile_texts_are_shown_and_not_obeyed(tab: Tab, tmp_path: Path) -> None:
    tab.open(report(hostile(tmp_path), tmp_path))
    seen = look(tab, WIDTHS[0])
    for text in (
        *HOSTILE[:6],
        "\\u202eabc",
        *HOSTILE[8:9],
        "\\u0000\\u001b[31m",
        "⏎",
        "w" * LONGEST_TOKEN + "…",
        *HOSTILE[12:],
    ):
        assert text in seen.text
    assert tab.evaluate("document.querySelectorAll('script, body h1 ~ h1, body > img').length") == 0
    assert tab.evaluate("document.title").startswith("Drift of ")


def test_what_is_wrong_with_a_page_is_found(tab: Tab, tmp_path: Path) -> None:
    """One that asks for a picture, complains, is too wide, and has small and faint text and an empty picture."""
    page = tmp_path / "bad.html"
    page.write_text(BAD, "utf-8")
    tab.open(page)
    seen = look(tab, 400)
    assert "http://elsewhere.example/a.png" in tab.requests
    for word in ("told", "thrown", "ERR_NAME_NOT_RESOLVED"):
        assert any(word in text for text in tab.complaints), word
    assert seen.overflow > 0
    assert (len(seen.outside), len(seen.small), len(seen.faint)) == (1, 1, 1)
    assert any(text.startswith("DIV cut") for text in seen.wider)
    assert seen.marks == [0, 0]


EMPTY = base64.b64encode(b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>').decode()
BAD = f"""<!DOCTYPE html><meta name="viewport" content="width=device-width"><body>
<script>console.error("told"); setTimeout(() => {{ throw new Error("thrown"); }}, 0);</script>
<img src="http://elsewhere.example/a.png"><img src="data:image/svg+xml;base64,{EMPTY}">
<div class="cut" style="overflow: hidden; width: 90px"><div style="width: 900px; height: 9px"></div></div>
<p style="width: 600px">This ends beyond the edge of a narrow window, since it is as wide as a wider one.</p>
<p style="font-size: 8px">small</p><p style="color: #bbb">faint</p></body>"""


def report(dump: Path, folder: Path) -> Path:
    """The page of a dump."""
    page = folder / "drift.html"
    assert main(["drift", "report", str(dump), "--html", str(page)]) == 0
    return page

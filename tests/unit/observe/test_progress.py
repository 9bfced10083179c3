import os
import pty
import subprocess
import sys

import pytest

from megarl.observe.progress import Progress

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
INTERRUPTED = """
from megarl.observe.progress import Progress
with Progress() as progress:
    progress.phase("rl [x]", 5, start=1)
    progress.advance(2, {"reward": 0.53, "entropy": 1.5e-05})
    progress.note("saved [red]2[/red]")
    raise KeyboardInterrupt
"""


def test_without_a_terminal_there_is_a_line_every_n_steps_and_for_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(every=2) as progress:
        progress.phase("rl", 5, start=1)
        for step in range(2, 6):
            progress.advance(step, {"reward": step / 8, "entropy": 1.5e-05})
        progress.note("done")
    assert capsys.readouterr().out.splitlines() == [
        "rl: 5 steps, 1 already done",
        "rl 2/5  reward 0.250  entropy 1.5e-05",
        "rl 4/5  reward 0.500  entropy 1.5e-05",
        "rl 5/5  reward 0.625  entropy 1.5e-05",
        "done",
    ]


def test_forced_colour_puts_no_bar_into_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(every=1) as progress:
        progress.phase("sft", 1)
        progress.advance(1, {})
    assert capsys.readouterr().out == "sft: 1 steps\nsft 1/1\n"


def test_an_interrupt_in_a_terminal_brings_the_cursor_back() -> None:
    shown = in_terminal(INTERRUPTED)
    assert "reward 0.530  entropy 1.5e-05" in shown
    assert "rl [x]" in shown
    assert "saved [red]2[/red]" in shown
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)


def in_terminal(code: str) -> str:
    """What a program writes to a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30", "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.PIPE, env=environment) as run:
        os.close(theirs)
        try:
            _, errors = run.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            run.kill()
            raise
    assert b"KeyboardInterrupt" in errors
    written = b""
    while chunk := read(ours):
        written += chunk
    os.close(ours)
    return written.decode()


def read(terminal: int) -> bytes:
    """The next bytes, or none once the other side is closed, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""

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


def test_without_a_terminal_there_are_a_few_lines_a_phase(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(lines=2) as progress:
        progress.phase("rl", 9, start=1)
        for step in range(2, 10):
            progress.advance(step, {"reward": step / 8, "entropy": 1.5e-05})
        progress.note("done")
    assert capsys.readouterr().out.splitlines() == [
        "rl: 9 steps, 1 already done",
        "rl 2/9  reward 0.250  entropy 1.5e-05",
        "rl 4/9  reward 0.500  entropy 1.5e-05",
        "rl 8/9  reward 1.000  entropy 1.5e-05",
        "rl 9/9  reward 1.125  entropy 1.5e-05",
        "done",
    ]


def test_forced_colour_puts_no_bar_into_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress() as progress:
        progress.phase("sft", 1)
        progress.advance(1, {})
    assert capsys.readouterr().out == "sft: 1 steps\nsft 1/1\n"


def test_an_interrupt_in_a_terminal_brings_the_cursor_back() -> None:
    shown = in_terminal(INTERRUPTED)
    assert "reward 0.530  entropy 1.5e-05" in shown
    assert "rl [x]" in shown
    assert "saved [red]2[/red]" in shown
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)


def in_terminal(code: str, columns: int = 120) -> str:
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "30", "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.PIPE, env=environment) as run:
        os.close(theirs)
        try:
            _, errors = run.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            run.kill()
            raise
    assert errors.count(b"Error") == 0
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


def test_a_reader_that_leaves_does_not_end_the_run() -> None:
    code = """
from megarl.observe.progress import Progress
import sys
with Progress() as progress:
    for _ in range(50000):
        progress.note("x" * 80)
print("went on", file=sys.stderr)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None and run.stderr is not None
        run.stdout.readline()
        run.stdout.close()
        assert "went on" in run.stderr.read()


def test_a_narrow_terminal_keeps_the_count_and_the_clock() -> None:
    code = (
        "from megarl.observe.progress import Progress\n"
        "with Progress() as progress:\n"
        "    progress.phase('rl', 60)\n"
        "    progress.advance(23, {name: 0.123 for name in ('reward', 'tokens', 'entropy', 'kl', 'drift')})\n"
    )
    shown = in_terminal(code, columns=80)
    assert "23/60" in shown and "0:00:0" in shown and "reward 0.123" in shown

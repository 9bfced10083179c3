"""How far a run has come, read from its folder. Imports nothing heavy."""

from pathlib import Path

from megarl.checkpoint.names import committed
from megarl.observe.files import read_jsonl_tolerant

_DONE = "2-done-"


def reached(run: Path) -> str:
    """The last step whose metrics were written, such as "rl 12"; empty before the first."""
    lines = read_jsonl_tolerant(run / "metrics.jsonl")
    return f"{lines[-1].get('phase', '?')} {lines[-1].get('step', '?')}" if lines else ""


def saved(run: Path) -> str:
    """Name of the newest checkpoint, such as "1-rl-00000012"; empty before the first. Names sort by progress."""
    return max(committed(run / "checkpoints"), default="")


def is_done(run: Path) -> bool:
    """Whether the run came to its end."""
    return saved(run).startswith(_DONE)

"""Commands beside servers that run already, with something of theirs replaced."""

from megarl.cli import main
from megarl.config.asynchrony import AsynchronyConfig


def nothing_ahead(argv: list[str]) -> int:
    """`main`, where an asynchronous run begins no step before its own time."""
    AsynchronyConfig.lookahead = property(lambda config: 0)  # type: ignore[method-assign, assignment]
    return main(argv)

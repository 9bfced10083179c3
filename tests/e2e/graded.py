"""A reward that a test changes between two runs."""

import os


def graded(response: str, problem: object) -> float:
    """What the environment says, whatever the response."""
    return float(os.environ["GRADED"])

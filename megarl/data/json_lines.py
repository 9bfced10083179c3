"""A file's JSON objects, one a line, read for what tells its mistakes in words of its own."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from megarl.config.refusal import in_words


class NoObjectError(Exception):
    """A line that is no JSON object, as 'line 3: not JSON (...)'."""


def numbered_objects(
    path: str | Path, parsed: Callable[[bytes], Any] = json.loads
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each line that is not blank, and its object.

    Args:
        path: the file.
        parsed: a line's value.

    Raises:
        OSError: the file cannot be read.
        NoObjectError: a line is no JSON object.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                value = parsed(line)
            except (ValueError, RecursionError) as error:
                raise NoObjectError(f"line {number}: not JSON ({error})") from error
            if not isinstance(value, dict):
                raise NoObjectError(f"line {number}: {in_words(value)} is not a JSON object")
            yield number, value

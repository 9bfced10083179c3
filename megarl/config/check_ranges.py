"""Checks of one resolved value, whatever the values of other keys."""

import math
from difflib import get_close_matches
from typing import Any

from megarl.config.keys import Key, join
from megarl.config.refusal import is_unicode, refusal


def check_range(key: Key, value: Any, source: str) -> None:
    """Refuses a resolved value that its key's declaration excludes.

    Raises:
        RecipeError: naming the bound, or the allowed words.
    """
    if value is None:
        return
    if key.choices is not None and value not in key.choices:
        guess = get_close_matches(value.lower(), key.choices, n=1)
        fix = f"did you mean {guess[0]}?" if guess else f"use one of {', '.join(key.choices)}"
        raise refusal(key.path, value, "is not a known choice", fix, source)
    if key.low is not None and value < key.low:
        raise refusal(key.path, value, f"is below {key.low}", f"give at least {key.low}", source)
    if key.high is not None and value > key.high:
        raise refusal(key.path, value, f"is above {key.high}", f"give at most {key.high}", source)
    if key.above is not None and value <= key.above:
        raise refusal(key.path, value, f"is not above {key.above}", f"give more than {key.above}", source)


def check_storable(path: str, value: Any, source: str) -> None:
    """Refuses NaN, infinities and text that cannot be written as UTF-8, in lists and mappings too.

    Raises:
        RecipeError: naming the key.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise refusal(path, value, "is not a finite number", "give one", source)
    if isinstance(value, str) and not is_unicode(value):
        raise refusal(path, ascii(value), "holds half a surrogate pair, which is no character", "mend it", source)
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        check_storable(f"{path}[{name}]" if isinstance(value, list) else join(path, str(name)), entry, source)

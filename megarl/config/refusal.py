"""How a refused recipe key is put into words."""

import json
from typing import Any

from megarl.config.errors import RecipeError

_LONGEST_VALUE = 80
_NO_TEXTS = ("true", "false", "null", "yes", "no", "on", "off")
"""What YAML does not read as text without quotes."""


def refusal(path: str, value: Any, reason: str, fix: str, source: str | None = None) -> RecipeError:
    """The error for one key, as one sentence.

    Args:
        path: dotted key.
        value: what the recipe gives it.
        reason: why that cannot be, as a verb phrase, such as "is below 1".
        fix: what to do instead, as an imperative, such as "give at least 1"; or a question.
        source: where the value came from, if that is known.
    """
    place = f" ({source})" if source else ""
    end = "" if fix.endswith("?") else "."
    return RecipeError(f"{path}={in_words(value)}{place} {reason}; {fix}{end}")


def in_words(value: Any) -> str:
    """A value as a recipe would write it, on one line, cut where it is long."""
    bare = isinstance(value, str) and value.isidentifier() and value.lower() not in _NO_TEXTS
    try:
        text: str = value if bare else json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        text = "a value that nests too deep to show"
    return shortened(text)


def shortened(text: str) -> str:
    """The text, cut where it is too long for a message."""
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8, which half a surrogate pair, as in "\\ud800", cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else True

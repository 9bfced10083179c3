"""How a refused recipe key is put into words."""

import json
from typing import Any

from megarl.config.errors import RecipeError

_LONGEST_VALUE = 80


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
    bare = isinstance(value, str) and value.isidentifier()
    text: str = value if bare else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."

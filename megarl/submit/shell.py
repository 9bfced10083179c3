"""How values get into a script: as one shell word, or as a checked word of an #SBATCH line, and in no other way."""

import re
import shlex
from typing import Any

from megarl.config.refusal import in_words, is_unicode
from megarl.submit.profile import ProfileError

_DIRECTIVE = re.compile(r"[A-Za-z0-9_.,:@%/+=&|*()\[\]~-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


class Directive(str):
    """Text that may stand in an #SBATCH line: no blank, quote, comment sign or line break, which sbatch would read."""


def directive(key: str, value: str) -> Directive:
    """The value as a word of an #SBATCH line.

    Args:
        key: what the user gave it as, for the message.
        value: the text.

    Raises:
        ProfileError: it holds a character that such a line, or SLURM, would take for something else.
    """
    if not _DIRECTIVE.fullmatch(value):
        raise ProfileError(
            f"{key}={in_words(value)} holds a character that an #SBATCH line cannot; "
            "use letters, digits and . , : @ % / + = & | * ( ) [ ] ~ - _ alone."
        )
    return Directive(value)


def job_name(name: str) -> Directive:
    """A run's name as a job's: what an #SBATCH line cannot hold becomes an underscore."""
    return Directive(re.sub(r"[^A-Za-z0-9_.-]", "_", name) or "_")


def shell_word(text: str) -> str:
    """One word of bash that stands for exactly this text, on one line.

    Raises:
        ProfileError: the text holds a zero byte or half a surrogate pair, which no argument of a program can.
    """
    if "\0" in text or not is_unicode(text):
        raise ProfileError(
            f"The value {in_words(ascii(text))} holds a zero byte or no whole character, which no program's argument "
            "can; take that out."
        )
    if not _CONTROL.search(text):
        return shlex.quote(text)
    return "$'" + "".join(_escaped(character) for character in text) + "'"


def finalize(value: Any) -> str:
    """What a template's {{ value }} becomes: directives as they are, numbers in digits, text as one shell word."""
    if isinstance(value, Directive):
        return str(value)
    if isinstance(value, str):
        return shell_word(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}" if isinstance(value, float) else str(value)
    raise TypeError(f"a template asks for {value!r}, which is neither text nor a number")


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    # bytes in octal: a wider escape would depend on the locale of the shell that reads it
    return "".join(f"\\{byte:03o}" for byte in character.encode()) if _CONTROL.match(character) else character

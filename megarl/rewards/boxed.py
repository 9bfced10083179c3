"""The last \\boxed{...} of a response against the reference answer."""

import re
from fractions import Fraction

from megarl.data.problem import Problem

_OPEN = "\\boxed{"

_LONGEST = 300
"""Characters of a box; a longer one is no answer, and costs no time."""

# The separators of thousands are taken only between groups of three digits: (1,234) and 1,2,3 stay what they are.
_UNSIGNED = re.compile(r"(?:\d{1,3}(?:(?:,\\!|\{,\}|\\,|\\!|,)\d{3})+|\d+)(?:\.\d*)?|\.\d+", re.ASCII)
_RATIO = re.compile(r"(\d+) ?/ ?([+-]?\d+)", re.ASCII)
_FRAC = re.compile(r"\\[dt]?frac ?(?:\{ ?([+-]?\d+) ?\}|(\d)) ?(?:\{ ?([+-]?\d+) ?\}|(\d))", re.ASCII)
_SEPARATORS = re.compile(r"[,\\!{}]")


def boxed_answer(response: str, problem: Problem) -> float:
    """1.0 if the last box of the response holds the reference answer, else 0.0.

    They are compared as text, then as exact numbers: integers, decimals, a/b and \\frac{a}{b}. Nothing is rounded
    and nothing is evaluated: 0.333 is not 1/3, and 5\\% is not 5.
    """
    box = last_boxed(response)
    return float(box is not None and same_answer(box, problem.answer))


def last_boxed(text: str) -> str | None:
    """What the last \\boxed{...} of a text holds, braces balanced; None if there is none or it does not end.

    A brace behind a backslash is a character of its own and balances nothing. A box of over 300 characters is None.
    """
    start = text.rfind(_OPEN)
    if start < 0:
        return None
    start += len(_OPEN)
    depth, position, end = 1, start, min(len(text), start + _LONGEST + 1)
    while position < end:
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start:position]
        position += 1
    return None


def same_answer(given: str, reference: str) -> bool:
    """Whether two answers are the same text, surrounding space aside, or the same number."""
    given, reference = given.strip(), reference.strip()
    if given == reference:
        return True
    number = parse_number(given)
    return number is not None and number == parse_number(reference)


def parse_number(text: str) -> Fraction | None:
    """The exact number that a text of at most 300 characters writes; None if it is not one."""
    if len(text) > _LONGEST:
        return None
    # a minus sign as typesetters write it, and the dollars of mathematics or money
    text = text.replace("\N{MINUS SIGN}", "-").strip("$ ").removeprefix("\\$")
    sign = -1 if text.startswith("-") else 1
    text = text[1:].lstrip() if text.startswith(("-", "+")) else text
    if _UNSIGNED.fullmatch(text):
        digits = _SEPARATORS.sub("", text)
        whole, _, decimals = digits.partition(".")
        return sign * Fraction(int(whole + decimals), 10 ** len(decimals))
    if match := _RATIO.fullmatch(text) or _FRAC.fullmatch(text):
        top, bottom = (int(group) for group in match.groups() if group is not None)
        return sign * Fraction(top, bottom) if bottom else None
    return None

"""The worst responses token by token: text with the drift as its colour, and the worst tokens in a table."""

import unicodedata
from collections.abc import Mapping
from html import escape

from megarl.dumps.report.table import Column, table
from megarl.dumps.worst import Sample
from megarl.observe.table import format_number

WINDOW = 300
"""Tokens shown of a response, around its worst one."""
LONGEST_PROMPT = 600
"""Characters of a prompt that are shown, its last ones."""
LONGEST_TOKEN = 100
"""Characters of one token that are shown, its first ones."""
LISTED = 5
SHADES = (0.02, 0.1, 0.3, 0.6)
"""Shares of the response's largest |Delta| from which a token has the next darker shade."""
_SHOWN = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": " "}


def heat_map(sample: Sample, pieces: Mapping[int, str]) -> str:
    """One response as HTML. Args: sample: the response. pieces: texts of tokens; one without is shown by its id."""
    sizes = [abs(ratio or 0.0) for ratio in sample.log_ratio]
    worst = max(range(len(sizes)), key=sizes.__getitem__)
    begin = max(0, min(worst - WINDOW // 2, len(sizes) - WINDOW))
    shown = range(begin, min(begin + WINDOW, len(sizes)))
    spans = "".join(_span(sample, place, pieces) for place in shown)
    part = "" if len(shown) == len(sizes) else f" Tokens {begin} to {shown[-1]} of {len(sizes):,}."
    order = sorted(range(len(sizes)), key=lambda place: -sizes[place])[:LISTED]
    sizes_told = f"Largest |Delta| {format_number(sample.largest)}, mean {format_number(sample.mean)}."
    reward = "" if sample.reward != sample.reward else f", reward {sample.reward:g}"
    return "\n".join(
        [
            f"<h3>{escape(visible(str(sample.key)))}{reward}</h3>",
            f'<p class="quiet">{sizes_told}{part}</p>',
            *_texts(sample, pieces),
            f'<div class="tokens">{spans}</div>',
            table(_COLUMNS, [_row(sample, place, pieces) for place in order if sizes[place] > 0]),
        ]
    )


_COLUMNS = (
    Column("position", number=True),
    Column("token"),
    Column("id", number=True, note=True),
    Column("trainer", number=True),
    Column("engine", number=True),
    Column("Delta", number=True),
)


def visible(text: str) -> str:
    """The text with each character that would not show, or would turn the text around it, by its sign or its code."""
    return "".join(_SHOWN.get(character) or _shown(character) for character in text)


def _shown(character: str) -> str:
    if unicodedata.category(character)[0] == "C" or character in "\u2028\u2029":
        return f"\\u{ord(character):04x}"
    return character


def _texts(sample: Sample, pieces: Mapping[int, str]) -> list[str]:
    # a response whose tokens have no texts is told by its own, where there is one
    told = {"Prompt": sample.prompt, "Response": "" if pieces else sample.text}
    return [f'<p class="quiet">{name}: {escape(_end(text))}</p>' for name, text in told.items() if text]


def _end(text: str) -> str:
    return visible(text if len(text) <= LONGEST_PROMPT else "…" + text[-LONGEST_PROMPT:])


def _span(sample: Sample, place: int, pieces: Mapping[int, str]) -> str:
    ratio = sample.log_ratio[place]
    text = escape(_token(sample, place, pieces))
    if ratio is None:
        return f'<span class="out" title="not compared">{text}</span>'
    share = abs(ratio) / sample.largest if sample.largest else 0.0
    shade = sum(share >= bound for bound in SHADES)
    kind = f' class="{"u" if ratio > 0 else "d"}{shade}"' if shade else ""
    return f'<span{kind} title="Delta {ratio:+.3g}">{text}</span>'


def _row(sample: Sample, place: int, pieces: Mapping[int, str]) -> list[str]:
    ratio = sample.log_ratio[place]
    return [
        f"{place:,}",
        _token(sample, place, pieces),
        str(sample.token_ids[place]),
        f"{sample.trainer[place]:.4g}",
        f"{sample.rollout[place]:.4g}",
        "" if ratio is None else f"{ratio:+.3g}",
    ]


def _token(sample: Sample, place: int, pieces: Mapping[int, str]) -> str:
    token = sample.token_ids[place]
    text = pieces.get(token, "")
    if not text:
        return f"[{token}]"
    return visible(text if len(text) <= LONGEST_TOKEN else text[:LONGEST_TOKEN] + "…")

"""The report as one page of HTML that loads nothing: no script, no font, no picture from elsewhere."""

import base64
from collections.abc import Mapping
from html import escape

from megarl.drift.budget import Budget
from megarl.dumps.measured import Measured
from megarl.dumps.open import Dump
from megarl.dumps.report import budget, figures
from megarl.dumps.report.heat import heat_map, visible
from megarl.dumps.report.style import STYLE
from megarl.dumps.report.table import Column, table
from megarl.dumps.report.verdict import ADVICE, Verdict
from megarl.dumps.report.words import MEASURES, group_label, shown

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser may load: the page's own style and pictures, and nothing by any address."""


def page(
    dump: Dump,
    found: Measured,
    numbers: Mapping[str, float],
    judged: Verdict,
    pieces: Mapping[int, str],
    parts: Budget | None,
) -> str:
    """The whole page.

    Args:
        dump: whose report it is.
        found: its numbers.
        numbers: its measures by name.
        judged: the verdict on it.
        pieces: text of each token by id.
        parts: the drift budget that goes with it; None without one.
    """
    title = escape(visible(f"Drift of {dump.path}"))
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # without it a browser asks for one
            '<link rel="icon" href="data:,">',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<h1>{title}</h1>",
            f'<p class="quiet">{escape(visible(_about(dump, found)))}</p>',
            _verdict(judged),
            "<h2>Pictures</h2>",
            _figures(found),
            "<h2>Numbers</h2>",
            '<p class="quiet">Delta = log trainer - log engine at the token that the engine sampled, in nats. '
            "Nothing is clipped or dropped.</p>",
            table(_NUMBERS, [(*_named(name), shown(name, numbers[name])) for name in MEASURES if name in numbers]),
            "<h2>Where it is</h2>",
            table(_GROUPS, _groups(numbers)),
            "<h2>What it is made of</h2>",
            budget.html(parts, numbers),
            "<h2>What each correction would keep</h2>",
            '<p class="quiet">Each alone, at its defaults; the keys are those of <code>rl.correction</code>, with '
            "<code>mode: decoupled</code>.</p>",
            table(_KEPT, _kept(found)),
            "<h2>The worst responses</h2>",
            f'<p class="quiet">{_WORST}</p>',
            *(heat_map(sample, pieces) for sample in found.worst),
            "" if found.worst else "<p>No response has any drift.</p>",
            "</body>\n</html>\n",
        ]
    )


_WORST = (
    "Those with the largest single Delta, then those with the largest mean. Orange: the trainer finds the token "
    "likelier than the engine did; blue: less likely. The darker, the nearer to the response's largest |Delta|."
)
_NUMBERS = (Column("measure"), Column("meaning", note=True), Column("value", number=True))
_GROUPS = (
    Column("tokens at"),
    Column("tokens", number=True),
    Column("mean |Delta|", number=True),
    Column("k1", number=True),
    Column("k3", number=True),
)
_KEPT = (
    Column("correction"),
    Column("keys", note=True),
    Column("tokens kept", number=True),
    Column("responses kept", number=True),
    Column("mean weight", number=True),
)


def _named(name: str) -> tuple[str, str]:
    return MEASURES[name]


def _about(dump: Dump, found: Measured) -> str:
    facts = [f"{name} {value}" for name, value in dump.about.items()]
    return f"A dump of {dump.source}: {', '.join([*facts, _responses(found.responses)])}."


def _responses(count: int) -> str:
    return "1 response" if count == 1 else f"{count:,} responses"


def _verdict(judged: Verdict) -> str:
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in judged.reasons)
    return (
        f'<div class="verdict {judged.level}"><strong>{escape(judged.headline)}</strong><ul>{reasons}</ul>'
        f"<p>{escape(ADVICE[judged.level])}</p><p>{escape(judged.automatic)}</p></div>"
    )


def _figures(found: Measured) -> str:
    ratios = found.ratios
    drawn = (
        ("Log-probs of trainer and engine; on the dashed line they agree.", figures.scatter(ratios)),
        ("|Delta| against the position in the response.", figures.by_position(ratios)),
        ("Mean |Delta| against the probability that the engine gave the token.", figures.by_probability(ratios)),
        (
            "Ratios of the tokens. The outermost bars hold all that lies beyond; green, where in reach, is 0.9 to 1.1.",
            figures.ratio_histogram(ratios),
        ),
        ("Log-weights of the responses; ESS and k-hat are of their exponentials.", figures.response_weights(ratios)),
        ("What each correction would keep, each alone and at its defaults.", figures.kept(found.kept)),
    )
    return f'<div class="figures">{"".join(_figure(caption, svg) for caption, svg in drawn)}</div>'


def _figure(caption: str, svg: str) -> str:
    # as a picture of its own, so that the names inside two of them cannot clash
    data = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    picture = f'<img alt="{escape(caption)}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _groups(numbers: Mapping[str, float]) -> list[list[str]]:
    names = [name.removesuffix("/tokens") for name in numbers if name.endswith("/tokens")]
    columns = ("abs_mean", "k1", "k3")
    return [
        [group_label(n), f"{numbers[f'{n}/tokens']:,.0f}", *(f"{numbers[f'{n}/{c}']:.3g}" for c in columns)]
        for n in names
    ]


def _kept(found: Measured) -> list[list[str]]:
    return [
        [
            kept.candidate.name,
            kept.candidate.keys,
            f"{100 * kept.token_share:.4g} %",
            f"{100 * kept.response_share:.4g} %",
            "-" if kept.weight_mean != kept.weight_mean else f"{kept.weight_mean:.4g}",
        ]
        for kept in found.kept
    ]

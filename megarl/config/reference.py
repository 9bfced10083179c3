"""The reference page of all recipe keys: `python -m megarl.config.reference > docs/recipe.md`."""

import inspect

from megarl.config.keys import Key, keys, sections
from megarl.config.resume import FREE_ON_RESUME, LAYOUT_ON_RESUME
from megarl.config.schema import Recipe
from megarl.config.yaml_text import format_literal

_INTRODUCTION = """\
# The recipe

A recipe is a YAML file that decides a run. What it leaves out has the default given below.
`megarl config RECIPE` prints the whole recipe with the origin of every value; `--docs` adds the meanings.

- **Composition.** A top-level `defaults: [base.yaml, ...]` names recipes that come first, in order; their paths are
  relative to the file that names them. Mappings merge key by key, the free `options` too; lists are replaced.
- **Overrides.** `megarl train RECIPE rl.steps=10 evaluate.ks=[1,2]`: dotted keys, YAML values, later ones win.
  Text that YAML reads as something else is quoted twice: `name='"7"'`.
- **Interpolation.** `${rl.steps}` stands for another key's value, `${oc.env:NAME}` for an environment variable.
  Write `\\${` for the characters themselves.
- **Paths** in a recipe are relative to the working folder.
- **Refusals.** Unknown keys, wrong types, values out of range and keys that contradict each other are errors
  before anything starts, with exit code 2.
"""


def reference() -> str:
    """The page as Markdown: one table a section, one row a key, in the schema's order."""
    free, layout = (", ".join(f"`{name}`" for name in names) for names in (FREE_ON_RESUME, LAYOUT_ON_RESUME))
    resume = (
        "- **Resuming.** A resumed run must have the same recipe hash. These are not in it:\n"
        f"  {free};\n  and these, with which the numbers stay the same up to rounding:\n  {layout}.\n"
    )
    return _INTRODUCTION + resume + tables(Recipe)


def tables(schema: type) -> str:
    """A schema's keys as Markdown: one table a section, one row a key."""
    return "".join(_section(path, schema) for path in sections(schema))


def _section(path: str, schema: type) -> str:
    doc = inspect.getdoc(sections(schema)[path]) or ""
    rows = [_row(key) for key in keys(schema).values() if key.path.rpartition(".")[0] == path]
    if not rows:
        return f"\n## {path}\n\n{doc}\n"
    title = f"\n## {path}\n\n{doc}\n" if path else "\n## Top level\n"
    table = "\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
    return title + table + "".join(rows)


def _row(key: Key) -> str:
    # A default is shown as a recipe would write it, interpolation and all.
    cells = (f"`{key.path}`", key.kind_in_words, f"`{format_literal(key.default)}`", _allowed(key), key.doc)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _allowed(key: Key) -> str:
    if key.choices is not None:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    bounds = (
        (f"at least {key.low}", key.low),
        (f"above {key.above}", key.above),
        (f"at most {key.high}", key.high),
    )
    return ", ".join(text for text, bound in bounds if bound is not None)


if __name__ == "__main__":
    print(reference(), end="")

"""The reference page and the schema say the same."""

from dataclasses import is_dataclass
from typing import get_type_hints

import pytest

from megarl.config.keys import keys, sections
from megarl.config.reference import reference
from megarl.config.schema import Recipe


@pytest.mark.parametrize("path", keys())
def test_every_key_has_a_sentence(path: str) -> None:
    doc = keys()[path].doc
    assert doc.endswith(".")
    assert "\n" not in doc


@pytest.mark.parametrize("path", keys())
def test_every_default_is_in_its_own_range(path: str) -> None:
    key = keys()[path]
    if isinstance(key.default, int | float):
        assert key.low is None or key.default >= key.low
        assert key.high is None or key.default <= key.high
        assert key.above is None or key.default > key.above
    assert key.choices is None or key.default in key.choices
    assert key.default is not None or key.optional


def test_the_table_holds_the_whole_schema() -> None:
    def count(section: type) -> int:
        hints = get_type_hints(section).values()
        return sum(count(hint) if is_dataclass(hint) and isinstance(hint, type) else 1 for hint in hints)

    assert len(keys()) == count(Recipe)
    assert list(sections())[:3] == ["", "model", "model.moe"]
    assert keys()["rl.optimizer.lr"].kind is float
    assert keys()["model.init_from"].optional
    assert keys()["evaluate.ks"].item is int


@pytest.mark.parametrize("path", keys())
def test_the_page_has_a_row_for_every_key(path: str) -> None:
    (row,) = [line for line in reference().splitlines() if line.startswith(f"| `{path}` |")]
    assert keys()[path].doc in row


def test_the_page_in_docs_is_the_generated_one(request: pytest.FixtureRequest) -> None:
    page = request.config.rootpath / "docs/recipe.md"
    assert page.read_text(encoding="utf-8") == reference(), "run python -m megarl.config.reference > docs/recipe.md"

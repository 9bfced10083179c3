from pathlib import Path

import pytest

from megarl.config.data import DataConfig
from megarl.config.errors import RecipeError
from megarl.config.schema import Recipe
from megarl.data.chain_arithmetic import ChainArithmetic
from megarl.data.file_source import FileSource
from megarl.data.registry import SOURCES, build_source


def test_sources_are_those_of_the_schema() -> None:
    choices = next(field for field in DataConfig.__dataclass_fields__.values() if field.name == "source")
    assert tuple(SOURCES) == choices.metadata["choices"]


def test_builds_by_name_with_the_recipes_seed(tmp_path: Path) -> None:
    source = build_source(Recipe(seed=7))
    assert isinstance(source, ChainArithmetic)
    assert source.training(3) == ChainArithmetic(7, DataConfig()).training(3)
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p", "answer": 1}\n{"prompt": "q", "answer": 2}\n', encoding="utf-8")
    assert isinstance(build_source(Recipe(data=DataConfig("file", str(path), eval_prompts=1))), FileSource)


def test_unknown_source_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"data.source=files .* reasoning_gym, file"):
        build_source(Recipe(data=DataConfig(source="files")))

"""The prompts of `megarl drift measure`: where they come from, and what is said of files that hold none."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megarl.config.errors import DataError
from megarl.config.load import load_recipe
from megarl.config.schema import Recipe
from megarl.loop.measured_prompts import Asked
from tests.runs import RECIPE


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe(RECIPE, []).recipe


def asked_for(recipe: Recipe, file: Path | None, responses: int = 3) -> list[tuple[int, ...]]:
    requests = Asked(file, responses).requests(recipe, lambda text: [ord(character) for character in text])
    assert [request.problem_id for request in requests] == [str(number) for number in range(responses)]
    return [request.prompt_ids for request in requests]


def test_lines_jsonl_and_parquet_give_the_same_prompts_in_turn(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("12\n\n3\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "12"}\n{"prompt": 3, "answer": null}\n')
    pq.write_table(pa.table({"prompt": ["12", "3"]}), tmp_path / "a.parquet")
    for name in ("a.txt", "a.jsonl", "a.parquet"):
        assert asked_for(recipe, tmp_path / name) == [(49, 50), (51,), (49, 50)]
    assert len(set(asked_for(recipe, None))) == 3


@pytest.mark.parametrize(
    ("name", "held", "words"),
    [
        ("a.txt", "\n", "--prompts=.*a.txt is empty"),
        ("a.txt", "\udcff", "cannot be read as text"),
        ("b.txt", None, "cannot be read as text"),
        ("b.jsonl", None, "--prompts=.*b.jsonl is not a file"),
        ("a.jsonl", '{"question": "1"}', r"line 1: no column prompt \(data.prompt_column\)"),
        ("a.jsonl", '{"prompt": "1', "line 1: not JSON"),
        ("a.jsonl", '{"prompt": [1]}', "is neither text nor a number"),
        ("a.txt", "1" * 128, "has 128 tokens, and a response needs .*max_position_embeddings=128"),
    ],
)
def test_files_without_prompts_are_one_sentence(
    recipe: Recipe, tmp_path: Path, name: str, held: str | None, words: str
) -> None:
    if held is not None:
        (tmp_path / name).write_bytes(held.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=words) as caught:
        asked_for(recipe, tmp_path / name)
    assert "\n" not in str(caught.value)

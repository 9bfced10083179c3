import json
import logging
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from megarl.config.data import DataConfig
from megarl.config.errors import DataError, RecipeError
from megarl.data.file_source import FileSource

RECORDS = [{"prompt": f"p{number}", "answer": number, "worked": f"w{number}"} for number in range(1, 21)]


def jsonl(path: Path, records: list[Any]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def parquet(path: Path, columns: dict[str, list[Any]]) -> str:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


def make(path: str, seed: int = 0, eval_prompts: int = 4, **keys: Any) -> FileSource:
    return FileSource(seed, DataConfig(source="file", path=path, eval_prompts=eval_prompts, **keys))


def refused(path: str, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        make(path, **keys)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_last_rows_are_held_out(tmp_path: Path) -> None:
    source = make(jsonl(tmp_path / "a.jsonl", RECORDS))
    assert [problem.prompt for problem in source.evaluation()] == ["p17", "p18", "p19", "p20"]
    assert source.evaluation()[0].id == "evaluation/row-17"
    assert source.evaluation()[0].answer == "17"
    assert source.rows == 16


def test_every_epoch_is_another_permutation(tmp_path: Path) -> None:
    source = make(jsonl(tmp_path / "a.jsonl", RECORDS))
    epochs = [[source.training(16 * epoch + position).prompt for position in range(16)] for epoch in range(20)]
    assert all(sorted(epoch) == sorted(f"p{number}" for number in range(1, 17)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 20
    first = {epoch[0] for epoch in epochs}
    assert len(first) > 5


def test_pure_function_of_seed_and_index(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", RECORDS)
    one, two, other = make(path, seed=2**32 - 1), make(path, seed=2**32 - 1), make(path, seed=1)
    forwards = [one.training(index) for index in range(100)]
    assert [two.training(index) for index in reversed(range(100))] == forwards[::-1]
    assert [other.training(index).prompt for index in range(16)] != [problem.prompt for problem in forwards[:16]]
    assert len({problem.id for problem in forwards}) == 100
    assert one.training(10**12).prompt in {record["prompt"] for record in RECORDS[:16]}


def test_order_is_the_same_on_every_machine(tmp_path: Path) -> None:
    source = make(jsonl(tmp_path / "a.jsonl", RECORDS))
    assert [source.training(index).id for index in (0, 1, 16)] == [
        "training/epoch-0/row-1",
        "training/epoch-0/row-3",
        "training/epoch-1/row-15",
    ]


def test_demonstrations_come_from_their_column_in_their_own_order(tmp_path: Path) -> None:
    source = make(jsonl(tmp_path / "a.jsonl", RECORDS), demonstration_column="worked")
    shown = [source.demonstration(index, 0.5) for index in range(16)]
    assert all(problem.prompt[1:] == response[1:] for problem, response in shown)
    assert sorted(problem.prompt for problem, _ in shown) == sorted(
        source.training(index).prompt for index in range(16)
    )
    assert [problem.prompt for problem, _ in shown] != [source.training(index).prompt for index in range(16)]


def test_demonstrations_need_their_column(tmp_path: Path) -> None:
    source = make(jsonl(tmp_path / "a.jsonl", RECORDS))
    with pytest.raises(DataError, match="demonstration_column=null"):
        source.demonstration(0, 0.0)


def test_columns_template_and_numbers_as_written(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"q": "x", "a": 0.10}\n\n{"q": 7, "a": 12345678901234567890123}\n', encoding="utf-8")
    source = make(str(path), eval_prompts=1, prompt_column="q", answer_column="a", prompt_template="<{prompt}> {x}")
    assert (source.training(0).prompt, source.training(0).answer) == ("<x> {x}", "0.10")
    held_out = source.evaluation()[0]
    assert (held_out.id, held_out.prompt, held_out.answer) == (
        "evaluation/row-3",
        "<7> {x}",
        "12345678901234567890123",
    )


def test_parquet_reads_like_jsonl(tmp_path: Path) -> None:
    columns = {name: [record[name] for record in RECORDS] for name in ("prompt", "answer", "worked")}
    columns["unused"] = [None] * len(RECORDS)
    from_parquet = make(parquet(tmp_path / "a.parquet", columns), demonstration_column="worked")
    from_jsonl = make(jsonl(tmp_path / "a.jsonl", RECORDS), demonstration_column="worked")
    assert from_parquet.evaluation() == from_jsonl.evaluation()
    assert [from_parquet.demonstration(index, 0) for index in range(40)] == [
        from_jsonl.demonstration(index, 0) for index in range(40)
    ]


def test_eval_path_and_duplicates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = jsonl(tmp_path / "a.jsonl", RECORDS)
    held_out = jsonl(tmp_path / "b.jsonl", [RECORDS[2], {"prompt": "new", "answer": 1}, RECORDS[5]])
    with caplog.at_level(logging.WARNING):
        source = make(path, eval_prompts=2, eval_path=held_out)
    assert [problem.prompt for problem in source.evaluation()] == ["p3", "new"]
    # p6 is past the two rows evaluated on, and is evaluation data all the same
    assert {source.training(index).prompt for index in range(100)} == {
        record["prompt"] for record in RECORDS if record["prompt"] not in ("p3", "p6")
    }
    assert "2 of 20 training rows dropped" in caplog.text


def test_no_warning_without_duplicates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(jsonl(tmp_path / "a.jsonl", RECORDS))
    assert caplog.text == ""


def test_duplicate_of_a_held_out_row_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = make(jsonl(tmp_path / "a.jsonl", [*RECORDS, RECORDS[0]]), eval_prompts=1)
    assert source.rows == 19
    assert "1 of 20 training rows dropped" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["data.path=", "is empty"]),
        ("\n \n", ["data.path=", "is empty"]),
        ('{"prompt": "p", "answer": 1}\n{"prompt": \n', ["line 2", "not JSON"]),
        ('{"prompt": "p", "answer": 1}\n\n[1, 2]\n', ["line 3", "[", "not a JSON object"]),
        ("[" * 100_000, ["line 1", "not JSON"]),
        ('{"promt": "p", "answer": 1}\n', ["line 1", "no column prompt (data.prompt_column)", "did you mean promt?"]),
        ('{"prompt": "p", "zzz": 1}\n', ["no column answer (data.answer_column)", "prompt, zzz"]),
        ('{"prompt": null, "answer": 1}\n', ["line 1", "prompt=null", "neither text nor a number"]),
        ('{"prompt": "p", "answer": null}\n', ["line 1", "answer=null", "neither text nor a number"]),
        ('{"prompt": "p", "answer": true}\n', ["answer=true", "neither text nor a number"]),
        ('{"prompt": "p", "answer": ["5"]}\n', ['answer=["5"]', "neither text nor a number"]),
        ('{"prompt": "p", "answer": NaN}\n', ["answer=NaN", "neither text nor a number"]),
        ('{"prompt": " ", "answer": 1}\n', ['prompt=" "', "blank"]),
        ('{"prompt": "p", "answer": 1}\n' * 4, ["data.eval_prompts=4", "keeps all 4 rows"]),
        ('{"prompt": "p", "answer": 1}\n' * 5, ["data.path=", "evaluation prompts only"]),
    ],
)
def test_refused_jsonl(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text, encoding="utf-8")
    message = refused(str(path))
    assert all(word in message for word in words), message


def test_refused_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "p", "answer": 1}\n{"prompt": "\xff", "answer": 1}\n')
    assert "line 2" in refused(str(path))


def test_refused_demonstration(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [*RECORDS, {"prompt": "p", "answer": 1, "worked": None}])
    message = refused(path, demonstration_column="worked")
    assert "line 21" in message
    assert "worked=null (data.demonstration_column)" in message


def test_refused_parquet(tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 not parquet")
    assert "cannot be read as parquet" in refused(str(broken))
    misnamed = parquet(tmp_path / "misnamed.parquet", {"promt": ["p"], "answer": ["a"]})
    assert "did you mean promt?" in refused(misnamed)
    empty = parquet(tmp_path / "empty.parquet", {"prompt": [], "answer": []})
    assert "is empty" in refused(empty)
    null = parquet(tmp_path / "null.parquet", {"prompt": ["p", "q"], "answer": [1.5, None]})
    assert "row 2: answer=null" in refused(null)
    nan = parquet(tmp_path / "nan.parquet", {"prompt": ["p"], "answer": [float("nan")]})
    assert "row 1: answer=NaN" in refused(nan)


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([1], pyarrow.timestamp("ns")),
        pyarrow.array([1], pyarrow.duration("ns")),
        pyarrow.StringArray.from_buffers(1, pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"), pyarrow.py_buffer(b"\xff")),
        pyarrow.array([b"p"]),
    ],
    ids=["timestamps", "durations", "not UTF-8", "bytes"],
)
def test_refused_columns(tmp_path: Path, column: Any) -> None:
    message = refused(parquet(tmp_path / "a.parquet", {"prompt": column, "answer": ["1"]}))
    assert "prompt" in message
    assert "neither text nor" in message


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p", "answer": 1}\n{"prompt": "a\\ud800", "answer": 1}\n')
    message = refused(str(path))
    assert "line 2: prompt=" in message
    assert "half a surrogate pair" in message
    path.write_text('{"prompt": "\\ud83d\\ude00", "answer": 1}\n' * 2 + '{"prompt": "q", "answer": 1}\n' * 4)
    assert make(str(path)).training(0).prompt == "\U0001f600"


def test_refused_paths(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", RECORDS)
    assert "data.path=" in refused(str(tmp_path / "none.jsonl"))
    assert "data.eval_path=" in refused(path, eval_path=str(tmp_path / "none.jsonl"))
    assert "neither .jsonl nor .parquet" in refused(str(tmp_path / "a.csv"))
    few = jsonl(tmp_path / "few.jsonl", RECORDS[:3])
    assert "data.eval_prompts=4 is more than the 3 rows" in refused(path, eval_path=few)


def test_refused_options(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"is not read with data.source=file"):
        make(jsonl(tmp_path / "a.jsonl", RECORDS), options={"terms": 4})

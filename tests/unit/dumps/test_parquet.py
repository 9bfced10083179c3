"""megarl's dumps as they are read, and what is said of those that cannot be."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from megarl.dumps.errors import DumpError
from megarl.dumps.open import open_dump
from megarl.dumps.schema import HEADER_KEY, SCHEMA, Header
from tests.unit.dumps.made import LENGTHS, rows, write


def read(path: Path):
    return list(open_dump(path).read())


def test_what_is_written_is_read(tmp_path: Path) -> None:
    columns = rows()
    [chunk] = read(write(tmp_path / "a.parquet", columns))
    assert chunk.lengths_B.tolist() == list(LENGTHS)
    assert chunk.position_N.tolist() == [position for n in LENGTHS for position in range(n)]
    assert chunk.token_ids_N.tolist() == [token for ids in columns["response_ids"] for token in ids]
    # the file has fp32
    old = torch.tensor(np.concatenate(columns["old_log_probs"]).astype(np.float32)).double()
    assert torch.equal(chunk.trainer_log_probs_N, old)
    assert [str(key) for key in chunk.keys][3] == "step 1, problem p1, sample 1"
    assert chunk.rewards_B.tolist() == columns["reward"]


def test_a_missing_log_prob_is_not_usable_and_not_nan(tmp_path: Path) -> None:
    columns = rows()
    columns["rollout_log_probs"][3] = [None, -1.0, -np.inf, -1.0, -1.0, -1.0, -1.0]
    [chunk] = read(write(tmp_path / "a.parquet", columns))
    assert (~chunk.usable_N).nonzero().flatten().tolist() == [4, 6]
    assert chunk.log_ratio_trainer_over_rollout_N.isfinite().all()


def test_origins_of_tokens(tmp_path: Path) -> None:
    columns = rows([3, 0, 2], step=5)
    columns["versions"] = [
        [{"version": 2, "start": 0, "end": 1, "replica": 0}, {"version": 4, "start": 1, "end": 3, "replica": None}],
        [],
        [{"version": 3, "start": 0, "end": 2, "replica": 1}],
    ]
    [chunk] = read(write(tmp_path / "a.parquet", columns, step=5))
    assert chunk.age_N.tolist() == [2, 0, 0, 1, 1]
    assert chunk.replica_N.tolist() == [0, -1, -1, 1, 1]
    columns["versions"][2][0]["end"] = 1
    message = refusal(write(tmp_path / "b.parquet", columns, step=5))
    assert "versions of 1 tokens for 2 at step 5, problem p1, sample 0" in message


def test_a_folder_is_all_its_dumps_in_order(tmp_path: Path) -> None:
    for step in (10, 2, 9):
        write(tmp_path / f"dumps/step-{step:08d}.parquet", rows(step=step), step=step)
    for folder in (tmp_path, tmp_path / "dumps"):
        assert [chunk.keys[0].step for chunk in read(folder)] == [2, 9, 10]
    assert open_dump(tmp_path).about["steps"] == "2 to 10 (3 dumps)"


def test_more_responses_than_fit_at_once(tmp_path: Path) -> None:
    chunks = read(write(tmp_path / "a.parquet", rows([1] * 600)))
    assert [len(chunk) for chunk in chunks] == [256, 256, 88]


def refusal(path: Path) -> str:
    """The one sentence that the dump is refused with."""
    with pytest.raises(DumpError) as caught:
        read(path)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and str(path) in message
    return message


@pytest.mark.parametrize("share", (0.0, 0.5, 0.99))
def test_cut_short(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "a.parquet", rows([5] * 300))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "is no whole parquet file" in refusal(path)


def test_damaged_pages(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", rows([50] * 300))
    data = bytearray(path.read_bytes())
    data[1000:-40000] = bytes(len(data) - 41000)
    path.write_bytes(data)
    assert "is damaged" in refusal(path)


@pytest.mark.parametrize("column", ("old_log_probs", "rollout_log_probs"))
def test_nan(tmp_path: Path, column: str) -> None:
    columns = rows()
    columns[column][3][5] = np.nan
    path = tmp_path / "a.parquet"
    assert f"1 NaN among its {column}, the first at step 1, problem p1, sample 1" in refusal(write(path, columns))


@pytest.mark.parametrize("column", ("response_ids", "old_log_probs", "rollout_log_probs", "problem_id"))
def test_missing_column(tmp_path: Path, column: str) -> None:
    schema = pa.schema([field for field in SCHEMA if field.name != column])
    assert f"lacks the column {column}" in refusal(write(tmp_path / "a.parquet", rows(), schema=schema))


def test_column_of_another_type(tmp_path: Path) -> None:
    place = SCHEMA.get_field_index("old_log_probs")
    schema = SCHEMA.set(place, pa.field("old_log_probs", pa.list_(pa.float64())))
    message = refusal(write(tmp_path / "a.parquet", rows(), schema=schema))
    assert "column old_log_probs of type list<element: double>" in message


@pytest.mark.parametrize("column", ("old_log_probs", "rollout_log_probs"))
def test_unequal_lengths(tmp_path: Path, column: str) -> None:
    columns = rows()
    columns[column][3] = columns[column][3][:-1]
    message = refusal(write(tmp_path / "a.parquet", columns))
    assert f"6 {column} for 7 response_ids at step 1, problem p1, sample 1" in message


def test_no_list_at_all(tmp_path: Path) -> None:
    columns = rows()
    columns["old_log_probs"][2] = None
    assert "a response without old_log_probs" in refusal(write(tmp_path / "a.parquet", columns))


def test_dumps_of_two_tokenizers_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "step-00000001.parquet", rows())
    path = write(tmp_path / "step-00000002.parquet", rows(), tokenizer="b" * 64)
    with pytest.raises(DumpError, match="another tokenizer") as caught:
        open_dump(tmp_path)
    assert str(path) in str(caught.value)


def test_a_later_schema(tmp_path: Path) -> None:
    assert "schema version 2" in refusal(write(tmp_path / "a.parquet", rows(), version=2))


def test_nothing_there(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "a.parquet")
    assert "holds no step-*.parquet" in refusal(tmp_path)
    (tmp_path / "a.txt").touch()
    assert "no .parquet, .jsonl or .pt file" in refusal(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "header",
    [
        "[" * 100_000,
        *(
            json.dumps({**asdict(Header("run", 1, "0" * 64, None, "vllm", "bf16", "0")), name: value})
            for name, value in (("schema_version", "1"), ("tokenizer", 3), ("precision", ["bf16"]), ("step", None))
        ),
    ],
)
def test_a_header_of_other_values(tmp_path: Path, header: str) -> None:
    path = write(tmp_path / "a.parquet", rows())
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, HEADER_KEY: header.encode()}), path)
    assert "has no valid megarl.dump in its metadata" in refusal(path)

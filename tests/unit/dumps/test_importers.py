"""Dumps of other trainers, by the names that those give their fields."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from megarl.dumps.errors import DumpError
from megarl.dumps.open import open_dump
from tests.unit.dumps.made import write_jsonl

IDS = [5, 6, 7]
TRAINER = [-1.0, -2.0, -3.0]
ROLLOUT = [-1.5, -2.25, -3.0]
MASK = [True, False, True]


def verl() -> dict[str, Any]:
    text = {"input": "1+1=", "output": "2", "gts": "2", "score": 1.0, "step": 4}
    return {
        **text,
        "responses": IDS,
        "old_log_probs": TRAINER,
        "rollout_log_probs": ROLLOUT,
        "response_mask": [1, 0, 1],
    }


def trl() -> dict[str, Any]:
    text = {"step": 4, "prompt": "1+1=", "completion": "2", "accuracy_reward": 1.0, "advantage": 0.5, "reward": 1.0}
    mask = {"completion_mask": [1, 0, 1]}
    return {**text, **mask, "completion_ids": IDS, "old_per_token_logps": TRAINER, "sampling_per_token_logps": ROLLOUT}


def prime_rl() -> dict[str, Any]:
    return {
        "schema_version": 1,
        "step": 9,
        "export_step": 4,
        "export_sequence_idx": 0,
        "env_name": "sums",
        "token_ids": [1, 2, *IDS],
        "loss_mask": [False, False, *MASK],
        "trainer_logprobs": [0.0, None, *TRAINER],
        "inference_logprobs": [0.0, 0.0, *ROLLOUT],
        "rewards": [None, None, 1.0, 1.0, 1.0],
    }


def slime() -> dict[str, Any]:
    data = {
        "tokens": [torch.tensor([1, 2, *IDS])],
        "response_lengths": [3],
        "loss_masks": [torch.tensor([1, 0, 1])],
        "log_probs": [torch.tensor(TRAINER)],
        "rollout_log_probs": [torch.tensor(ROLLOUT)],
        "rewards": [1.0],
    }
    return {"rollout_id": 4, "rank": 0, "rollout_data": data}


def write_parquet(path: Path, lines: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(lines), path)
    return path


def write_pt(path: Path, held: Any) -> Path:
    torch.save(held, path)
    return path


WRITTEN: dict[str, Callable[[Path], Path]] = {
    "verl": lambda folder: write_jsonl(folder / "4.jsonl", [verl()]),
    "TRL": lambda folder: write_parquet(folder / "completions_00004.parquet", [trl()]),
    "prime-rl": lambda folder: write_jsonl(folder / "rank_0.jsonl", [prime_rl()]),
    "prime-rl parquet": lambda folder: write_parquet(folder / "rank_0.parquet", [prime_rl()]),
    "slime": lambda folder: write_pt(folder / "4_0.pt", slime()),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_both_sides_gave_is_read(name: str, tmp_path: Path) -> None:
    dump = open_dump(WRITTEN[name](tmp_path))
    assert dump.source == name.split()[0]
    [chunk] = dump.read()
    assert chunk.token_ids_N.tolist() == IDS
    assert chunk.trainer_log_probs_N.tolist() == TRAINER
    assert chunk.rollout_log_probs_N.tolist() == ROLLOUT
    assert chunk.generated_N.tolist() == MASK
    assert chunk.log_ratio_trainer_over_rollout_N.tolist() == [0.5, 0.0, 0.0]
    assert chunk.rewards_B.tolist() == [1.0]
    assert chunk.keys[0].step == 4


TEXT_ALONE: dict[str, Callable[[Path], Path]] = {
    "verl without responses, old_log_probs, rollout_log_probs": lambda folder: write_jsonl(
        folder / "4.jsonl", [{"input": "1+1=", "output": "2", "gts": "2", "score": 1.0, "step": 4}]
    ),
    "TRL without completion_ids, old_per_token_logps, sampling_per_token_logps": lambda folder: write_parquet(
        folder / "a.parquet", [{"step": 4, "prompt": "1+1=", "completion": "2", "advantage": 0.5}]
    ),
    "prime-rl without token_ids, loss_mask, trainer_logprobs, inference_logprobs": lambda folder: write_jsonl(
        folder / "train_rollouts.jsonl", [{"trajectory": [], "reward": 1.0}]
    ),
    "slime without tokens, response_lengths, log_probs, rollout_log_probs": lambda folder: write_pt(
        folder / "a.pt", {"rollout_id": 4, "samples": [{"tokens": IDS, "rollout_log_probs": ROLLOUT}]}
    ),
}


def refusal(path: Path) -> str:
    with pytest.raises(DumpError) as caught:
        list(open_dump(path).read())
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and str(path) in message
    return message


@pytest.mark.parametrize("words", TEXT_ALONE)
def test_text_alone_is_refused(words: str, tmp_path: Path) -> None:
    assert f"a dump of {words}" in refusal(TEXT_ALONE[words](tmp_path))


def test_a_later_row_may_not_lack_them_either(tmp_path: Path) -> None:
    assert "without rollout_log_probs" in refusal(
        write_jsonl(tmp_path / "a.jsonl", [verl(), {**verl(), "rollout_log_probs": None}])
    )


def test_unequal_lengths(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [verl(), {**verl(), "old_log_probs": [-1.0]}])
    assert "has 1 trainer_log_probs for 3 token_ids at step 4, problem , sample 1" in refusal(path)


def test_nan_where_it_counts(tmp_path: Path) -> None:
    nan = float("nan")
    # the second token was not generated
    [chunk] = open_dump(write_jsonl(tmp_path / "a.jsonl", [{**verl(), "old_log_probs": [-1, nan, -3]}])).read()
    assert chunk.usable_N.tolist() == MASK
    path = write_jsonl(tmp_path / "b.jsonl", [{**verl(), "old_log_probs": [-1, -2, nan]}])
    assert "1 NaN among its trainer_log_probs" in refusal(path)


def test_an_empty_mask_is_not_the_whole_response(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{**verl(), "response_mask": []}])
    assert "has 0 generated for 3 token_ids" in refusal(path)


def test_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(verl()) + "\n" + json.dumps(verl())[:-9])
    assert "line 2: not JSON" in refusal(path)


def test_another_kind_of_value(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{**verl(), "responses": 7}])
    assert "a value of another kind in row 1" in refusal(path)


def test_unknown_columns(tmp_path: Path) -> None:
    assert "which no known dump has" in refusal(write_jsonl(tmp_path / "a.jsonl", [{"question": "", "answer": ""}]))
    assert "holds no response" in refusal(write_jsonl(tmp_path / "b.jsonl", []))


class Planted:
    """What a pickle could run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


def test_a_pickle_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_pt(tmp_path / "a.pt", {"rollout_id": 4, "rollout_data": {"tokens": [Planted()]}})
    assert "holds Python objects" in refusal(path)
    assert capsys.readouterr().out == ""


def test_a_pt_cut_short(tmp_path: Path) -> None:
    path = write_pt(tmp_path / "a.pt", slime())
    path.write_bytes(path.read_bytes()[:-200])
    assert "is no whole .pt file" in refusal(path)

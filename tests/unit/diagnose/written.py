"""Rollouts of the small models, written as dumps."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from megarl.drift.diagnosis import Rollouts
from megarl.dumps.schema import SCHEMA, Header, file_metadata


def write(file: Path, rollouts: Rollouts, *, tokenizer: str | None = None, step: int = 1, **others: list[Any]) -> Path:
    """The rollouts under megarl's columns; `others` replace whole columns."""
    count = len(rollouts.ids_BT)
    spans = list(zip(rollouts.prompt_lengths_B.tolist(), rollouts.lengths_B.tolist(), strict=True))

    def cut(values_BT: torch.Tensor) -> list[list[float | None]]:
        rows = [values_BT[row, begin:end].tolist() for row, (begin, end) in enumerate(spans)]
        return [[None if value != value else value for value in row] for row in rows]

    columns = {
        "step": [step] * count,
        "problem_id": [str(row) for row in range(count)],
        "sample": [0] * count,
        "versions": [[{"version": step - 1, "start": 0, "end": end - begin, "replica": None}] for begin, end in spans],
        "prompt_ids": [rollouts.ids_BT[row, :begin].tolist() for row, (begin, _) in enumerate(spans)],
        "response_ids": cut(rollouts.ids_BT),
        "old_log_probs": cut(rollouts.trainer_log_probs_BT),
        "rollout_log_probs": cut(rollouts.engine_log_probs_BT),
        "temperature": [rollouts.sampling.temperature] * count,
        "top_p": [rollouts.sampling.top_p] * count,
        "top_k": [rollouts.sampling.top_k] * count,
        "stop_token_id": [rollouts.stop_token_id] * count,
        **others,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = [pa.array(columns.get(field.name, [None] * count), field.type) for field in SCHEMA]
    header = Header("run", step, "0" * 64, tokenizer, "vllm", "fp32", "0")
    pq.write_table(pa.table(arrays, SCHEMA.with_metadata(file_metadata(header, {}))), file)
    return file

"""Dumps made for tests: ragged responses, log-probs from a named generator."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from megarl.dumps.schema import SCHEMA, Header, file_metadata
from megarl.objectives.covariance import named_generator

LENGTHS = (3, 0, 1, 7, 2)
TOKENIZER = "a" * 64


def rows(lengths: Sequence[int] = LENGTHS, *, step: int = 1, drift: float = 0.1, name: str = "made") -> dict[str, Any]:
    """Columns of a dump: Delta is normal with the standard deviation `drift`, in nats."""
    generator = named_generator(f"{name}/{step}")
    draws = [torch.randn(3, n, generator=generator, dtype=torch.float64).numpy() for n in lengths]
    rollout = [-np.abs(draw[0]) - 0.01 for draw in draws]
    return {
        "step": [step] * len(lengths),
        "problem_id": [f"p{index // 2}" for index in range(len(lengths))],
        "sample": [index % 2 for index in range(len(lengths))],
        "prompt": ["1+1="] * len(lengths),
        "response": ["x" * n for n in lengths],
        "prompt_ids": [[1, 2]] * len(lengths),
        "response_ids": [list(range(3, 3 + n)) for n in lengths],
        "trained": [[True] * n for n in lengths],
        "old_log_probs": [row + drift * draw[1] for row, draw in zip(rollout, draws, strict=True)],
        "rollout_log_probs": rollout,
        "reference_log_probs": [None] * len(lengths),
        "advantages": [[1.0] * n for n in lengths],
        "versions": [[{"version": step - 1, "start": 0, "end": n}] for n in lengths],
        "finish_reason": ["stop"] * len(lengths),
        "reward": [float(index % 2) for index in range(len(lengths))],
        "task_reward": [float(index % 2) for index in range(len(lengths))],
        "temperature": [1.0] * len(lengths),
        "top_p": [1.0] * len(lengths),
        "top_k": [0] * len(lengths),
        "max_new_tokens": [8] * len(lengths),
        "stop_token_id": [1] * len(lengths),
    }


def write(
    path: Path,
    columns: Mapping[str, Any],
    *,
    tokenizer: str | None = TOKENIZER,
    schema: pa.Schema = SCHEMA,
    version: int = 1,
    pieces: Mapping[int, str] | None = None,
    step: int = 1,
) -> Path:
    """Writes a dump with these columns."""
    header = Header("made", step, "0" * 64, tokenizer, "vllm", "bf16", "0.1.0", version)
    table = pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names}, schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(file_metadata(header, pieces or {})), path)
    return path


def write_jsonl(path: Path, lines: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows as JSONL, arrays as lists."""
    path.write_text("".join(json.dumps(line, default=lambda array: array.tolist()) + "\n" for line in lines))
    return path

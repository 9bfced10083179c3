"""Reads megarl's own dumps, a few responses at a time."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from megarl.dumps.errors import DumpError
from megarl.dumps.responses import Key, Responses, Sampled, check_equal_lengths, check_no_nan
from megarl.dumps.schema import HEADER_KEY, PIECES_KEY, SCHEMA, SCHEMA_VERSION, Header, parsed_header, parsed_pieces

ROWS = 256
"""Responses in memory at once."""
_LISTS = ("response_ids", "old_log_probs", "rollout_log_probs")
READ = ("step", "problem_id", "sample", "prompt", "response", *_LISTS, "versions", "reward")
_SAMPLED = ("temperature", "top_p", "top_k", "stop_token_id")
_WHOLE = ("prompt_ids", *_SAMPLED)
"""Read where they are asked for."""


def open_parquet(path: Path) -> pq.ParquetFile:
    """The file, its footer read.

    Raises:
        DumpError: it is not there, cut short, or no parquet.
    """
    if not os.path.exists(path):
        raise DumpError(f"{path} does not exist, or lies where you may not look; name a dump file.")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise DumpError(
            f"{path} is no whole parquet file ({reason}); it was cut short, or is something else: copy it again."
        ) from error


def read_batches(path: Path, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The file's rows, at most `rows` at a time. Args: columns: those to read; None for all.

    Raises:
        DumpError: the file is not whole, or its pages are damaged.
    """
    batches = open_parquet(path).iter_batches(batch_size=rows, columns=columns)
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise DumpError(f"{path} is damaged ({reason}); copy it again.") from error
        if batch is None:
            return
        yield batch


def read_header(path: Path) -> tuple[Header, dict[int, str]]:
    """What the dump says of itself, and its tokens' texts.

    Raises:
        DumpError: it is not whole, has no header, is of a later schema, or lacks a column that is read.
    """
    schema = open_parquet(path).schema_arrow
    metadata = schema.metadata or {}
    header = parsed_header(metadata.get(HEADER_KEY, b""))
    if header is None:
        raise DumpError(
            f"{path} has no valid {HEADER_KEY.decode()} in its metadata; keep it when the file is rewritten."
        )
    if header.schema_version > SCHEMA_VERSION:
        raise DumpError(
            f"{path} has schema version {header.schema_version}, and this megarl reads up to {SCHEMA_VERSION}; "
            "use the megarl that wrote it, or a later one."
        )
    _check_columns(path, schema, READ)
    return header, parsed_pieces(metadata.get(PIECES_KEY))


def _check_columns(path: Path, schema: pa.Schema, names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in schema.names]:
        raise DumpError(f"{path} lacks the column {', '.join(missing)}; write the dump again with all of them.")
    for name in names:
        if schema.field(name).type != SCHEMA.field(name).type:
            kinds = f"{schema.field(name).type} and not {SCHEMA.field(name).type}"
            raise DumpError(f"{path} has a column {name} of type {kinds}; write it with the documented type.")


def read_responses(path: Path, *, whole: bool = False) -> Iterator[Responses]:
    """The dump's responses, at most `ROWS` at a time. Args: whole: with the prompts' ids and the sampling too.

    Raises:
        DumpError: lists of unequal lengths, NaN, a missing value, a column that is not there, or damaged pages.
    """
    names = (*READ, *_WHOLE) if whole else READ
    _check_columns(path, open_parquet(path).schema_arrow, names)
    for batch in read_batches(path, ROWS, names):
        responses = _responses(path, batch)
        yield replace(responses, **_prompts_and_sampling(batch)) if whole else responses


def _prompts_and_sampling(batch: pa.RecordBatch) -> dict[str, Any]:
    ways = zip(*(batch.column(name).to_pylist() for name in _SAMPLED), strict=True)
    return {"prompt_ids": batch.column("prompt_ids").to_pylist(), "sampled": [Sampled(*way) for way in ways]}


def _responses(path: Path, batch: pa.RecordBatch) -> Responses:
    for name in ("step", "problem_id", "sample", *_LISTS):
        if batch.column(name).null_count:
            raise DumpError(f"{path} has a response without {name}; write the dump again.")
    named = zip(*(batch.column(name).to_pylist() for name in ("step", "problem_id", "sample")), strict=True)
    keys = [Key(*fields) for fields in named]
    lists = {name: batch.column(name) for name in _LISTS}
    lengths = {name: values.value_lengths().to_numpy() for name, values in lists.items()}
    check_equal_lengths(path, keys, "response_ids", lengths)
    lengths_B = torch.tensor(lengths["response_ids"], dtype=torch.int64)
    columns = {name: values.flatten() for name, values in lists.items()}
    if columns["response_ids"].null_count or columns["old_log_probs"].null_count:
        raise DumpError(f"{path} has a token without an id, or without the trainer's log-prob; write the dump again.")
    row_N = torch.repeat_interleave(torch.arange(len(keys)), lengths_B)
    filled = {name: _fp64(pc.fill_null(columns[name], float("inf"))) for name in _LISTS[1:]}
    check_no_nan(path, keys, row_N, filled)
    replica_N, age_N = _origins(path, keys, batch.column("versions"), lengths_B)
    return Responses(
        keys=keys,
        lengths_B=lengths_B,
        token_ids_N=torch.tensor(columns["response_ids"].to_numpy(zero_copy_only=False), dtype=torch.int64),
        trainer_log_probs_N=filled["old_log_probs"],
        rollout_log_probs_N=filled["rollout_log_probs"],
        generated_N=torch.ones(len(row_N), dtype=torch.bool),
        rewards_B=_fp64(pc.fill_null(batch.column("reward"), float("nan"))),
        prompts=[text or "" for text in batch.column("prompt").to_pylist()],
        texts=[text or "" for text in batch.column("response").to_pylist()],
        replica_N=replica_N,
        age_N=age_N,
    )


def _origins(
    path: Path, keys: list[Key], versions: pa.Array, lengths_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Server and age of the weights of each token, int64 [N], from the spans [start, end) of the responses."""
    spans = versions.flatten()
    fields = {name: _int64(spans.field(name)) for name in ("version", "start", "end", "replica")}
    row_S = torch.repeat_interleave(torch.arange(len(keys)), _int64(versions.value_lengths()).clamp(min=0))
    tokens_S = (fields["end"] - fields["start"]).clamp(min=0)
    covered_B = torch.zeros_like(lengths_B).index_add_(0, row_S, tokens_S)
    uncovered = (covered_B != lengths_B).nonzero().flatten()
    if len(uncovered):
        raise DumpError(
            f"{path} has versions of {covered_B[uncovered[0]]} tokens for {lengths_B[uncovered[0]]} at "
            f"{keys[uncovered[0]]}; write spans that cover each response."
        )
    # the weights that a step trains have been updated once by each step before it
    age_S = torch.tensor([key.step - 1 for key in keys])[row_S] - fields["version"]
    replica_N = torch.repeat_interleave(fields["replica"], tokens_S)
    return replica_N, torch.repeat_interleave(age_S.clamp(min=-1), tokens_S)


def _int64(values: pa.Array) -> torch.Tensor:
    return torch.tensor(pc.fill_null(values, -1).to_numpy(zero_copy_only=False), dtype=torch.int64)


def _fp64(values: pa.Array) -> torch.Tensor:
    return torch.tensor(values.to_numpy(zero_copy_only=False), dtype=torch.float64)

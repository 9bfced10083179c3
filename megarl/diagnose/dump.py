"""`megarl drift diagnose`: a dump of a run and the weights that its trainer scored with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from megarl.config.hf_config import read_config
from megarl.diagnose.show import show
from megarl.diagnose.transformers_model import DTYPES, TransformersModel
from megarl.drift.diagnosis import Diagnosis, Rollouts, Sampling, diagnose
from megarl.drift.diagnosis.computation import Dtype
from megarl.dumps.errors import DumpError
from megarl.dumps.parquet import open_parquet, read_batches, read_header

_COLUMNS = (
    "prompt_ids",
    "response_ids",
    "old_log_probs",
    "rollout_log_probs",
    "temperature",
    "top_p",
    "top_k",
    "stop_token_id",
)


def diagnose_dump(
    path: Path,
    model: Path | None,
    older: Sequence[Path],
    *,
    dtype: Dtype | None,
    tokenizer: Path | None,
    responses: int,
) -> int:
    """Prints what makes the log-probs differ.

    Args:
        path: a parquet file of megarl's schema.
        model: folder of the trainer's weights at that step, in Hugging Face layout; None to look at the tokens alone.
        older: folders of earlier weights, newest first.
        dtype: the trainer's; None for what the dump says.
        tokenizer: folder of the tokenizer, whose begin token is tried before prompts.
        responses: the first so many of the dump are looked at.

    Returns:
        0, or 1 where a cause was found.

    Raises:
        DumpError: the file is no such dump, or `model` is not what it was scored with.
    """
    if path.is_dir():
        raise DumpError(f"{path} is a folder, and the weights differ at each step; name one step's file in it.")
    rollouts = read_rollouts(path, responses)
    built = None
    if model is not None:
        precision = dtype or _dtype(path)
        models = [
            load_model(folder, precision, "--model" if folder == model else "--older") for folder in (model, *older)
        ]
        begin = None if tokenizer is None else AutoTokenizer.from_pretrained(tokenizer).bos_token_id
        built = TransformersModel(models, precision, openers=() if begin is None else ((begin,), (begin, begin)))
    diagnosis = diagnose(rollouts, built)
    _check_weights(diagnosis, path, model)
    show(diagnosis)
    return 1 if diagnosis.findings else 0


def _check_weights(diagnosis: Diagnosis, path: Path, model: Path | None) -> None:
    """Refuses weights that neither side of a dump without a drift computed with.

    Experiments on them would name a cause of the distance to the model, which is none of a drift.
    """
    floor, trainer, engine = diagnosis.floor, diagnosis.trainer, diagnosis.engine
    if floor is None or trainer is None or engine is None:
        return
    if diagnosis.drift <= floor.limit < min(trainer, engine):
        raise DumpError(
            f"--model={model} is not what {path} was scored with: trainer and engine are {diagnosis.drift:.2g} nats a "
            f"token apart, which is rounding, and {min(trainer, engine):.2g} from it; give the weights from before "
            "that step, which the checkpoint of the step before it holds."
        )


def load_model(folder: Path, dtype: Dtype, key: str) -> Any:
    """A model in Hugging Face layout. Args: key: what the user gave the folder as, for refusals."""
    read_config(str(folder), key)
    # transformers' bar, over weights that are there in a moment
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation="sdpa")
    return model.eval()


def _dtype(path: Path) -> Dtype:
    said = read_header(path)[0].precision
    known: dict[str, Dtype] = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
    if said not in known:
        raise DumpError(f"{path} says precision={said}, which no experiment runs in; give --dtype.")
    return known[said]


def read_rollouts(path: Path, count: int) -> Rollouts:
    """The first responses of a dump that have a token.

    Raises:
        DumpError: the file lacks a column, is damaged, holds no response, or was sampled in several ways.
    """
    there = open_parquet(path).schema_arrow.names
    missing = [name for name in _COLUMNS if name not in there]
    if missing:
        raise DumpError(f"{path} has no column {missing[0]}; diagnose needs megarl's own, as docs/dumps.md lists them.")
    rows: list[Mapping[str, Any]] = []
    for batch in read_batches(path, max(1, count), _COLUMNS):
        rows += [row for row in batch.to_pylist() if row["response_ids"]]
        if len(rows) >= count:
            break
    if not rows:
        raise DumpError(f"{path} holds no response with a token; name a dump that does.")
    return _laid_out(path, rows[:count])


def _laid_out(path: Path, rows: Sequence[Mapping[str, Any]]) -> Rollouts:
    ways = {(row["temperature"], row["top_p"], row["top_k"], row["stop_token_id"]) for row in rows}
    if len(ways) > 1:
        raise DumpError(f"{path} was sampled in {len(ways)} ways (temperature, top_p, top_k); diagnose one at a time.")
    temperature, top_p, top_k, stop = ways.pop()
    prompts = [len(row["prompt_ids"]) for row in rows]
    ends = [prompt + len(row["response_ids"]) for prompt, row in zip(prompts, rows, strict=True)]
    ids_BT = torch.zeros(len(rows), max(ends), dtype=torch.int64)
    engine_BT, trainer_BT = (torch.full(ids_BT.shape, float("nan"), dtype=torch.float64) for _ in range(2))
    for number, (row, prompt, end) in enumerate(zip(rows, prompts, ends, strict=True)):
        ids_BT[number, :end] = torch.tensor([*row["prompt_ids"], *row["response_ids"]])
        for into_BT, column in ((engine_BT, "rollout_log_probs"), (trainer_BT, "old_log_probs")):
            given = row[column]
            if given is None or len(given) != end - prompt:
                raise DumpError(f"{path} has a response {number} without one {column} a token; it cannot be diagnosed.")
            into_BT[number, prompt:end] = torch.tensor([float("nan") if one is None else one for one in given])
    return Rollouts(
        ids_BT,
        torch.tensor(prompts),
        torch.tensor(ends),
        engine_BT,
        trainer_BT,
        Sampling(temperature, top_p, top_k),
        stop,
    )

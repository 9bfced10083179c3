"""`megarl drift diagnose`: a dump of a run, alone or with the weights that its trainer scored with."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megarl.diagnose.load import load_model
from megarl.diagnose.read import read_reported, read_rollouts
from megarl.diagnose.show import show
from megarl.diagnose.transformers_model import TransformersModel
from megarl.drift.diagnosis import Diagnosis, Rollouts, diagnose, diagnose_alone
from megarl.drift.diagnosis.computation import Dtype
from megarl.dumps.errors import DumpError
from megarl.dumps.open import Dump, open_dump
from megarl.dumps.responses import Sampled
from megarl.dumps.tokens import tokenizer_of

_RESPONSES = 64
"""That experiments are run on; what bounds their logits."""


def diagnose_dump(
    path: Path,
    model: Path | None,
    older: Sequence[Path],
    *,
    dtype: Dtype | None,
    tokenizer: Path | None,
    responses: int | None,
    asked: Sampled,
) -> int:
    """Prints what makes the log-probs differ.

    Args:
        path: a dump; see `open_dump`.
        model: folder of the trainer's weights at that step, in Hugging Face layout; None to look at the dump alone.
        older: folders of earlier weights, newest first.
        dtype: the trainer's; None for what the dump says.
        tokenizer: folder of the tokenizer, whose begin token is tried before prompts.
        responses: the first so many of the dump are looked at; None for 64 with a model, and for all without.
        asked: how the dump was sampled, where it does not say.

    Returns:
        0, or 1 where a cause was found.

    Raises:
        DumpError: the dump cannot be read, was made with another tokenizer, or `model` is not what it was scored with.
    """
    dump = open_dump(path)
    begin = None if tokenizer is None else tokenizer_of(dump, tokenizer, "--tokenizer").bos_token_id
    if model is None:
        diagnosis = diagnose_alone(read_reported(dump, responses, asked))
    else:
        if os.path.isfile(model / "tokenizer.json"):
            tokenizer_of(dump, model, "--model")
        rollouts = read_rollouts(dump, responses or _RESPONSES, asked)
        precision = dtype or _dtype(dump)
        models = [
            _loaded(folder, precision, "--model" if folder == model else "--older", rollouts, dump)
            for folder in (model, *older)
        ]
        openers = () if begin is None else ((begin,), (begin, begin))
        diagnosis = diagnose(rollouts, TransformersModel(models, precision, openers=openers))
        _check_weights(diagnosis, path, model)
    show(diagnosis)
    return 1 if diagnosis.findings else 0


def _check_weights(diagnosis: Diagnosis, path: Path, model: Path) -> None:
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


def _loaded(folder: Path, dtype: Dtype, key: str, rollouts: Rollouts, dump: Dump) -> Any:
    """A model that has a row for each token. Args: key: what the folder was given as, for refusals."""
    model = load_model(folder, dtype, key)
    low, high, rows = int(rollouts.ids_BT.min()), int(rollouts.ids_BT.max()), model.config.vocab_size
    if not 0 <= low <= high < rows:
        raise DumpError(
            f"{dump.path} was made with another tokenizer than {key}={folder}: it has the token id "
            f"{low if low < 0 else high}, and that model {rows} tokens; give the trainer's weights."
        )
    return model


def _dtype(dump: Dump) -> Dtype:
    known: dict[str | None, Dtype] = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
    if dump.precision not in known:
        says = "does not say the trainer's precision" if dump.precision is None else f"says precision={dump.precision}"
        raise DumpError(f"{dump.path} {says}, which experiments need; give --dtype.")
    return known[dump.precision]

"""slime's `.pt` dumps: of `--save-debug-train-data`, which has both sides' log-probs.

That of `--save-debug-rollout-data` has the engine's alone.
"""

import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megarl.dumps.errors import DumpError
from megarl.dumps.importers.row import Row, checked, to_responses
from megarl.dumps.responses import Key, Responses

_ROWS = 256
_NEEDED = ("tokens", "response_lengths", "log_probs", "rollout_log_probs")
_TAKE = "take that of --save-debug-train-data, of a run with --use-tis or --get-mismatch-metrics"


def read_slime(path: Path) -> Iterator[Responses]:
    """The responses of one rank's training data.

    Raises:
        DumpError: the file is damaged, holds objects that are not tensors and plain values, or lacks log-probs; or its
            lists are of unequal lengths or hold NaN.
    """
    data = _loaded(path)
    if missing := [name for name in _NEEDED if data.get(name) is None]:
        raise DumpError(
            f"{path} is a dump of slime without {', '.join(missing)}, and drift needs token ids and both sides' "
            f"log-probs; {_TAKE}."
        )
    if flat := [name for name in _NEEDED if not isinstance(data[name], list | tuple | torch.Tensor)]:
        raise DumpError(f"{path} has {flat[0]} that are no list; write them as slime does.")
    count = len(data["tokens"])
    if unequal := [name for name in _NEEDED if len(data[name]) != count]:
        raise DumpError(f"{path} has {count} tokens and {len(data[unequal[0]])} {unequal[0]}; write the dump again.")
    for begin in range(0, count, _ROWS):
        numbers = range(begin, min(begin + _ROWS, count))
        yield to_responses(path, [checked(path, "slime", number, partial(_row, data, number)) for number in numbers])


def _loaded(path: Path) -> dict[str, Any]:
    try:
        # nothing but tensors and plain values: a pickle from elsewhere may run anything
        held = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DumpError(
            f"{path} holds Python objects, which could run code when they are loaded, or is no .pt file; save tensors, "
            "lists, dicts and numbers alone."
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise DumpError(f"{path} is no whole .pt file ({reason}); copy it again.") from error
    if not isinstance(held, dict):
        raise DumpError(f"{path} holds a {type(held).__name__} and not slime's dict; {_TAKE}.")
    data = held.get("rollout_data", {})
    return {"rollout_id": held.get("rollout_id"), **(data if isinstance(data, dict) else {})}


def _row(data: dict[str, Any], index: int) -> Row:
    length = int(data["response_lengths"][index])
    tokens = _list(data["tokens"][index])
    masks, rewards = data.get("loss_masks"), data.get("rewards")
    return Row(
        key=Key(int(data["rollout_id"] or 0), "", index),
        token_ids=tokens[len(tokens) - length :],
        trainer_log_probs=_list(data["log_probs"][index]),
        rollout_log_probs=_list(data["rollout_log_probs"][index]),
        generated=[True] * length if masks is None else _list(masks[index]),
        reward=float("nan") if rewards is None else float(rewards[index]),
        prompt="",
        text="",
        prompt_ids=tokens[: len(tokens) - length],
    )


def _list(values: Any) -> list[Any]:
    flat: list[Any] = values.tolist() if isinstance(values, torch.Tensor) else list(values)
    return flat

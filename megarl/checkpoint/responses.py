"""Responses that wait to be trained on, as one file of a checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import nan
from pathlib import Path

import torch
from safetensors import safe_open

from megarl.checkpoint.shards import write_tensors
from megarl.rollout.types import Completion, Request, VersionSpan

RESPONSES = "responses.safetensors"

Awaited = Mapping[int, Mapping[int, Completion]]
"""By position of the batch and by row in it; see `RunState.awaited`."""


def save_responses(folder: Path, awaited: Awaited) -> None:
    """Writes them, and nothing where there are none.

    Tokens (int64) and log-probs (fp64, NaN for none) of all responses lie end to end; the rest is JSON.

    Raises:
        OSError: they could not be written.
    """
    rows = [(position, row, each) for position, batch in awaited.items() for row, each in batch.items()]
    if not rows:
        return
    about = [
        {
            "position": position,
            "row": row,
            "length": len(each.token_ids),
            "request": asdict(each.request),
            "finish_reason": each.finish_reason,
            "versions": [[span.version, span.start, span.end, span.replica] for span in each.versions],
        }
        for position, row, each in rows
    ]
    log_probs = [nan if value is None else value for _, _, each in rows for value in each.log_probs]
    tensors = {
        "tokens": torch.tensor([token for _, _, each in rows for token in each.token_ids], dtype=torch.int64),
        "log_probs": torch.tensor(log_probs, dtype=torch.float64),
    }
    write_tensors(tensors, folder / RESPONSES, {"responses": json.dumps(about)})


def load_responses(folder: Path) -> dict[int, dict[int, Completion]]:
    """What `save_responses` wrote to the folder."""
    file = folder / RESPONSES
    if not file.exists():
        return {}
    with safe_open(file, framework="pt") as opened:
        about = json.loads(opened.metadata()["responses"])
        tokens, log_probs = opened.get_tensor("tokens").tolist(), opened.get_tensor("log_probs").tolist()
    awaited: dict[int, dict[int, Completion]] = {}
    begin = 0
    for each in about:
        end = begin + each["length"]
        prompt_ids = tuple(each["request"].pop("prompt_ids"))
        awaited.setdefault(each["position"], {})[each["row"]] = Completion(
            request=Request(**each["request"], prompt_ids=prompt_ids),
            token_ids=tuple(tokens[begin:end]),
            log_probs=tuple(log_probs[begin:end]),
            finish_reason=each["finish_reason"],
            versions=tuple(VersionSpan(*span) for span in each["versions"]),
        )
        begin = end
    return awaited

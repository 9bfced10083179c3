"""Requests and responses of vLLM's token endpoint, /inference/v1/generate."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from megarl.rollout.engine import EngineError, ResponseAborted
from megarl.rollout.request_key import request_key, sampling_seed
from megarl.rollout.routing import RoutedExperts
from megarl.rollout.types import Completion, FinishReason, Request, SamplingParams, VersionSpan

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def to_json(
    request: Request, sampling: SamplingParams, seed: int, context: int, cache_salt: str | None = None
) -> dict[str, Any]:
    """The request's body.

    Every setting that changes the distribution is in it, so that no default of the server's counts.

    Args:
        request: what to continue.
        sampling: how.
        seed: the recipe's.
        context: tokens that the model can read.
        cache_salt: requests share keys and values of a prompt only where this is the same; None for no such bound.
    """
    key = request_key(request, seed)
    return {
        **({} if cache_salt is None else {"cache_salt": cache_salt}),
        "request_id": key.hex(),
        "token_ids": list(request.prompt_ids),
        "sampling_params": {
            "n": 1,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": 1.0 if sampling.greedy else sampling.top_p,
            "top_k": 0 if sampling.greedy else sampling.top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": min(sampling.max_new_tokens, context - len(request.prompt_ids)),
            "stop_token_ids": [sampling.stop_token_id],
            "ignore_eos": True,
            # 0: of the sampled token alone
            "logprobs": 0,
            "seed": sampling_seed(key),
            "detokenize": False,
            "skip_special_tokens": False,
        },
    }


def from_json(request: Request, answer: Mapping[str, Any]) -> Completion:
    """The completion in a response.

    Raises:
        EngineError: the answer lacks what the trainer needs.
        ResponseAborted: the engine was told to drop it.
    """
    choice = answer["choices"][0]
    finish_reason = _FINISHED.get(choice["finish_reason"])
    if finish_reason is None:
        raise EngineError(f"the engine ended a response with finish_reason={choice['finish_reason']!r}")
    token_ids = tuple(choice["token_ids"] or ())
    entries = (choice["logprobs"] or {}).get("content") or []
    if [entry["token_id"] for entry in entries] != list(token_ids):
        raise EngineError("the engine's log-probs are of other tokens than its response")
    # one that was aborted before its first token has none
    versions = tuple(
        VersionSpan(int(span["version"]), span["start"], span["end"]) for span in choice["weight_versions"] or ()
    )
    completion = Completion(
        request=request,
        token_ids=token_ids,
        log_probs=tuple(entry["logprob"] for entry in entries),
        finish_reason=finish_reason,
        versions=tuple(span for span in versions if span.end > span.start),
        routing=_routing(choice["routed_experts"]),
    )
    if finish_reason == "abort":
        raise ResponseAborted(completion)
    return completion


def _routing(encoded: str | None) -> RoutedExperts | None:
    if encoded is None:
        return None
    experts_TLK = np.load(io.BytesIO(base64.b64decode(encoded)), allow_pickle=False)
    return RoutedExperts(torch.from_numpy(experts_TLK.astype(np.int16)))

"""Requests and responses of SGLang's /generate, tokens both ways."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError, ResponseAborted
from megarl.rollout.request_key import request_key, sampling_seed
from megarl.rollout.routing import RoutedExperts
from megarl.rollout.types import Completion, FinishReason, Request, SamplingParams, VersionSpan

_FINISHED: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def to_json(
    request: Request, sampling: SamplingParams, seed: int, context: int, cache_salt: str | None = None
) -> dict[str, Any]:
    """The request's body.

    Every setting that changes the distribution is in it, so that no default of the server's counts. SGLang's log-probs
    are log_softmax(logits / temperature), but for a greedy request, where it leaves the temperature out.

    Args:
        request: what to continue.
        sampling: how.
        seed: the recipe's.
        context: tokens that the model can read.
        cache_salt: requests share keys and values of a prompt only where this is the same; None for no such bound.
    """
    return {
        "input_ids": list(request.prompt_ids),
        **({} if cache_salt is None else {"extra_key": cache_salt}),
        "return_logprob": True,
        # of the response's tokens alone
        "logprob_start_len": -1,
        "return_routed_experts": sampling.with_routing,
        "sampling_params": {
            "n": 1,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
            "max_new_tokens": min(sampling.max_new_tokens, context - len(request.prompt_ids)),
            "stop_token_ids": [sampling.stop_token_id],
            # SGLang would ignore the stop tokens with it
            "ignore_eos": False,
            # the stop token is part of the response
            "no_stop_trim": True,
            # read by servers on GPUs alone: see the command line
            "sampling_seed": sampling_seed(request_key(request, seed)),
            "skip_special_tokens": False,
        },
    }


def from_json(request: Request, sampling: SamplingParams, answer: Mapping[str, Any], recipe: Recipe) -> Completion:
    """The completion in a response.

    Args:
        request: what was asked for.
        sampling: how.
        answer: the response, parsed.
        recipe: has the shape of the model's experts.

    Raises:
        EngineError: the answer lacks what the trainer needs, or the response ended for another reason than its own.
        ResponseAborted: the engine was told to drop it.
    """
    about = answer["meta_info"]
    ended = about["finish_reason"]
    finish_reason = _FINISHED.get(ended["type"])
    if finish_reason is None or (finish_reason == "stop" and ended["matched"] != sampling.stop_token_id):
        raise EngineError(f"the engine ended a response with finish_reason={ended!r}")
    # one that was aborted before its first token has none of these
    token_ids = tuple(answer["output_ids"] or ())
    entries = about.get("output_token_logprobs") or ()
    versions = tuple(
        VersionSpan(int(span["version"]), span["start"], span["end"]) for span in about.get("weight_versions") or ()
    )
    # each is (log-prob, token, text)
    if [entry[1] for entry in entries] != list(token_ids):
        raise EngineError("the engine's log-probs are of other tokens than its response")
    completion = Completion(
        request=request,
        token_ids=token_ids,
        log_probs=tuple(entry[0] for entry in entries),
        finish_reason=finish_reason,
        versions=tuple(span for span in versions if span.end > span.start),
        routing=_routing(about.get("routed_experts"), recipe),
    )
    if finish_reason == "abort":
        raise ResponseAborted(completion)
    return completion


def _routing(encoded: str | None, recipe: Recipe) -> RoutedExperts | None:
    if encoded is None:
        return None
    shape = (-1, recipe.model.num_layers, recipe.model.moe.experts_per_token)
    experts_TLK = np.frombuffer(base64.b64decode(encoded), dtype=np.int32).reshape(shape)
    return RoutedExperts(torch.from_numpy(experts_TLK.astype(np.int16)))

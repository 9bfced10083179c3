"""What the two sides' tokens tell by themselves: another prompt, re-encoded text, an end that one side made up."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from megarl.drift.diagnosis.finding import Finding
from megarl.drift.diagnosis.reported import Reported
from megarl.drift.diagnosis.rollouts import Rollouts

_ONE_CHAT = "build the prompt's token ids once, by one chat template, and give both sides those ids"
_KEEP_IDS = "carry token ids, not text, from engine to trainer: text that is encoded again may become other tokens"
_OWN_END = (
    "train on the tokens that the engine sampled alone: a stop token that the trainer appends has no log-prob, and "
    "must be masked"
)


def findings_from_tokens(rollouts: Rollouts) -> Iterator[Finding]:
    """What can be told without a model."""
    if rollouts.engine_ids_BT is not None and rollouts.engine_lengths_B is not None:
        yield from _other_tokens(rollouts, rollouts.engine_ids_BT, rollouts.engine_lengths_B)
    yield from findings_from_stop(rollouts)


def _other_tokens(rollouts: Rollouts, engine_BT: Tensor, lengths_B: Tensor) -> Iterator[Finding]:
    prompts, responses, ends = 0, 0, 0
    for row in range(len(engine_BT)):
        own = rollouts.ids_BT[row, : int(rollouts.lengths_B[row])].tolist()
        engine = engine_BT[row, : int(lengths_B[row])].tolist()
        if own == engine:
            continue
        begin = int(rollouts.prompt_lengths_B[row])
        if own[:begin] != engine[:begin]:
            prompts += 1
        elif own[:-1] == engine and own[-1] == rollouts.stop_token_id:
            ends += 1
        else:
            responses += 1
    total = len(engine_BT)
    for cause, count, what, fix in (
        ("chat_template", prompts, "prompts are other tokens", _ONE_CHAT),
        ("retokenised", responses, "responses are other tokens", _KEEP_IDS),
        ("stop_token", ends, "responses end with a stop token", _OWN_END),
    ):
        if count:
            yield Finding(
                cause,
                "trainer",
                1.0,
                f"{count} of {total} {what} in the trainer than those that the engine read and sampled"
                if cause != "stop_token"
                else f"{count} of {total} {what} that the engine did not sample",
                fix,
            )


def findings_from_stop(rollouts: Rollouts | Reported) -> Iterator[Finding]:
    """A last token that the trainer scores, and to which the engine gave no log-prob, or exactly 0.

    An engine at a low temperature is certain of tokens too, but of those that the trainer finds likelier than not.
    """
    if rollouts.stop_token_id is None:
        return
    last_N = torch.ones_like(rollouts.rows_N, dtype=torch.bool)
    last_N[:-1] = rollouts.rows_N[1:] != rollouts.rows_N[:-1]
    made_up_N = rollouts.engine_N.isnan() | ((rollouts.engine_N == 0) & (rollouts.trainer_N < -math.log(2)))
    ends_N = last_N & made_up_N & (rollouts.targets_N == rollouts.stop_token_id)
    if ends_N.any() and not (made_up_N & ~last_N).any():
        count = int(ends_N.sum())
        yield Finding(
            "stop_token",
            "trainer",
            1.0,
            f"{count} of {int(last_N.sum())} responses end with a stop token that the engine gave no log-prob of, and "
            "no other token lacks one",
            _OWN_END,
        )

"""A dump's responses as a diagnosis takes them: flat where it is looked at alone, padded for a model."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from megarl.drift.diagnosis import Reported, Rollouts, Sampling
from megarl.drift.diagnosis.contexts import shared_contexts
from megarl.dumps.errors import DumpError
from megarl.dumps.open import Dump
from megarl.dumps.responses import Responses, Sampled


def read_reported(dump: Dump, count: int | None, asked: Sampled) -> Reported:
    """The tokens of a dump, without the prompts.

    Args:
        dump: any.
        count: its first so many responses; None for all.
        asked: how it was sampled, where the dump does not say.

    Raises:
        DumpError: the dump cannot be read, holds no response with a token, or was sampled in several ways.
    """
    chunks = list(_first(dump, count))
    way = _one_way(dump.path, [one for chunk in chunks for one in chunk.sampled], asked)
    lengths = [length for chunk in chunks for length in chunk.lengths_B.tolist()]
    starts = [start for chunk in chunks for start in _starts(chunk)]
    tokens_N, ages_N = (torch.cat([getattr(chunk, name) for chunk in chunks]) for name in ("token_ids_N", "age_N"))
    sides = [[_known(chunk, getattr(chunk, name)) for chunk in chunks] for name in _SIDES]
    return Reported(
        torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        tokens_N,
        torch.cat(sides[0]),
        torch.cat(sides[1]),
        shared_contexts(starts, lengths, tokens_N.tolist(), ages_N.tolist()),
        _sampling(way),
        way.stop_token_id,
    )


_SIDES = ("rollout_log_probs_N", "trainer_log_probs_N")


def read_rollouts(dump: Dump, count: int, asked: Sampled) -> Rollouts:
    """The first responses of a dump that have a token, behind their prompts. Args: see `read_reported`.

    Raises:
        DumpError: as `read_reported`; or the dump is of several steps, does not say how it was sampled, or lacks the
            prompts' ids.
    """
    _check_one_step(dump)
    chunks = list(_first(dump, count))
    way = _one_way(dump.path, [one for chunk in chunks for one in chunk.sampled], asked)
    sampling = _sampling(way)
    if sampling is None:
        raise DumpError(
            f"{dump.path} does not say how it was sampled, which experiments need to know; give --temperature, and "
            "--top-p, --top-k and --stop-token-id where they apply."
        )
    prompts = [_prompt(dump, prompt) for chunk in chunks for prompt in chunk.prompt_ids]
    responses = [ids for chunk in chunks for ids in _split(chunk, chunk.token_ids_N)]
    engine, trainer = (
        [part for chunk in chunks for part in _split(chunk, _known(chunk, getattr(chunk, name)))] for name in _SIDES
    )
    kept = [row for row, ids in enumerate(responses) if len(ids)]
    lengths = [len(prompts[row]) + len(responses[row]) for row in kept]
    ids_BT = torch.zeros(len(kept), max(lengths), dtype=torch.int64)
    engine_BT, trainer_BT = (torch.full(ids_BT.shape, float("nan"), dtype=torch.float64) for _ in _SIDES)
    for number, (row, end) in enumerate(zip(kept, lengths, strict=True)):
        begin = len(prompts[row])
        ids_BT[number, :begin], ids_BT[number, begin:end] = torch.tensor(prompts[row]), responses[row]
        engine_BT[number, begin:end], trainer_BT[number, begin:end] = engine[row], trainer[row]
    return Rollouts(
        ids_BT,
        torch.tensor([len(prompts[row]) for row in kept]),
        torch.tensor(lengths),
        engine_BT,
        trainer_BT,
        sampling,
        way.stop_token_id,
    )


def _first(dump: Dump, count: int | None) -> Iterator[Responses]:
    """Chunks until so many responses with a token were seen; the last one is cut."""
    seen = 0
    for chunk in dump.read(whole=True):
        has_B = chunk.lengths_B > 0
        if count is not None and seen + int(has_B.sum()) >= count:
            last = int((has_B.cumsum(0) >= count - seen).nonzero()[0])
            yield chunk.first(last + 1)
            return
        seen += int(has_B.sum())
        yield chunk
    if not seen:
        raise DumpError(f"{dump.path} holds no response with a token; name a dump that does.")


def _known(chunk: Responses, log_probs_N: Tensor) -> Tensor:
    """The log-probs, NaN where there is none or the engine did not sample."""
    return log_probs_N.where(chunk.generated_N & log_probs_N.isfinite(), float("nan"))


def _split(chunk: Responses, values_N: Tensor) -> Sequence[Tensor]:
    parts: Sequence[Tensor] = values_N.split(chunk.lengths_B.tolist())
    return parts


def _starts(chunk: Responses) -> Iterator[tuple[int, object] | None]:
    """What tells prompts of one step apart: their ids, their names or their text."""
    for key, ids, text in zip(chunk.keys, chunk.prompt_ids, chunk.prompts, strict=True):
        prompt: object = tuple(ids) if ids else (key.problem_id, text)
        yield None if prompt == ("", "") else (key.step, prompt)


def _one_way(path: Path, ways: Sequence[Sampled], asked: Sampled) -> Sampled:
    """How all were sampled: as the dump says, or, where it does not, as was asked."""
    told = set(ways)
    if len(told) > 1:
        raise DumpError(f"{path} was sampled in {len(told)} ways (temperature, top_p, top_k); diagnose one at a time.")
    said = told.pop()
    _check_way(path, said)
    found = {}
    for name in (field.name for field in fields(Sampled)):
        own, given = getattr(said, name), getattr(asked, name)
        if None not in (own, given) and own != given:
            option = "--" + name.replace("_", "-")
            raise DumpError(f"{path} says {name}={own}, not {option}={given}; leave the option out.")
        found[name] = given if own is None else own
    return Sampled(**found)


def _check_way(path: Path, way: Sampled) -> None:
    """Refuses a dump that says what nothing is sampled with, such as the temperature 0 of a greedy choice."""
    fits = {
        "temperature": way.temperature is None or 0 < way.temperature < math.inf,
        "top_p": way.top_p is None or 0 < way.top_p <= 1,
        "top_k": way.top_k is None or way.top_k >= 0,
    }
    if wrong := next((name for name, is_fit in fits.items() if not is_fit), None):
        raise DumpError(
            f"{path} says {wrong}={getattr(way, wrong)}, which no response is sampled with; name a dump of responses "
            "that were drawn."
        )


def _sampling(way: Sampled) -> Sampling | None:
    if way.temperature is None:
        return None
    return Sampling(way.temperature, 1.0 if way.top_p is None else way.top_p, way.top_k or 0)


def _check_one_step(dump: Dump) -> None:
    """One step's weights are what a model holds."""
    if not dump.path.is_dir():
        return
    steps = sorted({key.step for chunk in dump.read() for key in chunk.keys})
    if len(steps) > 1:
        raise DumpError(
            f"{dump.path} holds the steps {steps[0]} to {steps[-1]}, and the weights differ at each; name one step's "
            "file in it."
        )


def _prompt(dump: Dump, ids: Sequence[int] | None) -> Sequence[int]:
    if not ids:
        raise DumpError(
            f"{dump.path} has a response without its prompt's token ids, which experiments need; add them as "
            "docs/dumps.md says, or leave --model out."
        )
    return ids

"""The embedded engine against one-by-one decoding with transformers, and against its own promises."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import Qwen2ForCausalLM

from megarl.config.model import ModelConfig
from megarl.megatron.models.qwen2 import hf_config
from megarl.rollout import Completion, Request, SamplingParams, VersionSpan, WeightsError
from megarl.rollout import embedded as module
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.sampling import uniforms
from tests.unit.megatron.hf import hf_model, tensor_names
from tests.unit.megatron.tiny import CONTEXT, VOCAB, noisy_weights, tiny_recipe

SEED = 11
STOP = 6
SAMPLING = SamplingParams(temperature=0.8, max_new_tokens=12, stop_token_id=STOP)
GREEDY = replace(SAMPLING, greedy=True)


def model_config(**changes: object) -> ModelConfig:
    return tiny_recipe(**changes).model  # type: ignore[arg-type]


def tensors(model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    read = noisy_weights(model)
    return ((name, read(name)) for name in tensor_names(model))


def empty_engine(model: ModelConfig, max_batch_size: int = 100) -> EmbeddedEngine:
    return EmbeddedEngine(hf_config(model, VOCAB), seed=SEED, max_batch_size=max_batch_size, device=torch.device("cpu"))


def engine_with(model: ModelConfig, max_batch_size: int = 100) -> EmbeddedEngine:
    engine = empty_engine(model, max_batch_size)
    engine.load_weights(tensors(model), version=3)
    return engine


def requests(count: int = 24, longest: int = 14) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [
        Request(f"p{i // 3}", i % 3, tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist()), "rl/0")
        for i, length in enumerate(lengths)
    ]


@torch.no_grad()
def one_by_one(network: Qwen2ForCausalLM, request: Request, sampling: SamplingParams) -> list[int]:
    """Tokens by running the whole sequence anew at each step: no cache, no padding, no batch."""
    ids = list(request.prompt_ids)
    tokens: list[int] = []
    draws = uniforms([request], SEED, sampling.max_new_tokens)[0].tolist()
    while len(tokens) < sampling.max_new_tokens and len(ids) < CONTEXT:
        logits = network(torch.tensor([ids])).logits[0, -1].double()
        cumulative = (logits / sampling.temperature).softmax(0).cumsum(0)
        token = int(logits.argmax()) if sampling.greedy else int((cumulative <= draws[len(tokens)]).sum())
        ids.append(token)
        tokens.append(token)
        if token == sampling.stop_token_id:
            break
    return tokens


@torch.no_grad()
def full_sequence_log_probs(network: Qwen2ForCausalLM, completion: Completion, temperature: float) -> Tensor:
    """Log-probs of the response's tokens from one pass over prompt and response."""
    prompt, response = completion.request.prompt_ids, completion.token_ids
    logits = network(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    log_probs: Tensor = (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
    return log_probs


@pytest.mark.parametrize("sampling", [SAMPLING, GREEDY], ids=["sampled", "greedy"])
@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False, "num_query_groups": 1}], ids=["tied", "untied"])
@pytest.mark.parametrize("longest", [14, CONTEXT - 1], ids=["short", "up to the context"])
def test_a_batch_of_unequal_prompts_is_one_by_one(
    sampling: SamplingParams, changes: dict[str, object], longest: int
) -> None:
    model = model_config(**changes)
    network = hf_model(model, noisy_weights(model), torch.float32)
    asked = requests(80, longest)
    completions = engine_with(model).generate(asked, sampling)
    assert [completion.request for completion in completions] == asked
    for completion in completions:
        assert list(completion.token_ids) == one_by_one(network, completion.request, sampling)
        wanted = full_sequence_log_probs(network, completion, sampling.temperature)
        torch.testing.assert_close(torch.tensor(completion.log_probs), wanted, rtol=0.0, atol=1e-5)


def test_stop_token_ends_a_response_and_is_its_last() -> None:
    completions = engine_with(model_config()).generate(requests(), SAMPLING)
    reasons = {completion.finish_reason for completion in completions}
    assert reasons == {"stop", "length"}
    for completion in completions:
        stops = [place for place, token in enumerate(completion.token_ids) if token == STOP]
        if completion.finish_reason == "stop":
            assert stops == [len(completion.token_ids) - 1]
        else:
            assert not stops and len(completion.token_ids) == SAMPLING.max_new_tokens
        assert completion.versions == (VersionSpan(3, 0, len(completion.token_ids)),)
        assert len(completion.log_probs) == len(completion.token_ids)


def test_stop_on_the_last_token_allowed_is_a_stop() -> None:
    engine = engine_with(model_config())
    whole = engine.generate(requests(), SAMPLING)
    stopped = next(completion for completion in whole if completion.finish_reason == "stop")
    length = len(stopped.token_ids)
    (exactly,) = engine.generate([stopped.request], replace(SAMPLING, max_new_tokens=length))
    assert (exactly.token_ids, exactly.finish_reason) == (stopped.token_ids, "stop")


def test_context_bounds_a_response() -> None:
    engine = engine_with(model_config())
    # a stop token that does not exist: only the budget and the context can end a response
    endless = SamplingParams(0.8, CONTEXT, stop_token_id=VOCAB)
    prompts = {length: tuple(i % VOCAB for i in range(length)) for length in (1, 5, CONTEXT - 2, CONTEXT - 1)}
    asked = [Request(f"p{length}", 0, prompt, "rl/0") for length, prompt in prompts.items()]
    completions = engine.generate(asked, endless)
    assert [len(completion.token_ids) for completion in completions] == [CONTEXT - length for length in prompts]
    assert all(completion.finish_reason == "length" for completion in completions)
    alone = [engine.generate([one], endless)[0].token_ids for one in asked]
    assert [completion.token_ids for completion in completions] == alone


@pytest.mark.parametrize("length", [0, CONTEXT, CONTEXT + 1])
def test_prompt_that_is_empty_or_fills_the_context_is_refused(length: int) -> None:
    full = Request("p", 0, (1,) * length, "rl/0")
    with pytest.raises(ValueError, match=f"{length} tokens"):
        engine_with(model_config()).generate([requests()[0], full], SAMPLING)


@pytest.mark.parametrize("threshold", [0.0, 0.75, 2.0])
@pytest.mark.parametrize("max_batch_size", [1, 5, 100])
def test_neither_compaction_nor_batch_size_changes_a_response(
    threshold: float, max_batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_config()
    wanted = engine_with(model).generate(requests(), SAMPLING)
    monkeypatch.setattr(module, "COMPACT_BELOW", threshold)
    got = engine_with(model, max_batch_size).generate(requests(), SAMPLING)
    for a, b in zip(got, wanted, strict=True):
        assert (a.request, a.token_ids, a.finish_reason) == (b.request, b.token_ids, b.finish_reason)
        assert a.log_probs == pytest.approx(b.log_probs, abs=1e-5)


def test_order_of_the_requests_does_not_change_a_response() -> None:
    engine = engine_with(model_config())
    forwards, backwards = engine.generate(requests(), SAMPLING), engine.generate(requests()[::-1], SAMPLING)
    assert [c.token_ids for c in forwards] == [c.token_ids for c in backwards[::-1]]


def test_nothing_asked_is_nothing_given() -> None:
    assert engine_with(model_config()).generate([], SAMPLING) == []


def test_new_weights_change_the_version_and_the_responses() -> None:
    model = model_config()
    engine = engine_with(model)
    before = engine.generate(requests(), SAMPLING)
    read = noisy_weights(model, seed=9)
    engine.load_weights([(name, read(name)) for name in tensor_names(model)], version=4)
    after = engine.generate(requests(), SAMPLING)
    assert engine.version == 4 and {c.versions[0].version for c in after} == {4}
    assert [c.token_ids for c in before] != [c.token_ids for c in after]


def test_loaded_tensors_are_copied() -> None:
    model = model_config()
    engine, sent = empty_engine(model), [(name, tensor.clone()) for name, tensor in tensors(model)]
    engine.load_weights(sent, 0)
    before = engine.generate(requests(), GREEDY)
    for _, tensor in sent:
        tensor.zero_()
    assert engine.generate(requests(), GREEDY) == before


def test_generating_without_weights_is_an_error() -> None:
    engine = empty_engine(model_config())
    assert engine.version == -1
    with pytest.raises(RuntimeError, match="no weights"):
        engine.generate(requests(), SAMPLING)


def test_tensors_that_are_not_the_model_are_refused() -> None:
    model = model_config(tie_embeddings=False)
    good = list(tensors(model))
    name, tensor = good[4]
    cases = {
        "1 tensors did not arrive, such as": good[:4] + good[5:],
        f"{name} arrived twice": [*good, (name, tensor)],
        "model.extra.weight arrived but is not in the model": [*good, ("model.extra.weight", tensor)],
        f"{name} arrived as": [*good[:4], (name, tensor[:-1]), *good[5:]],
    }
    for message, sent in cases.items():
        with pytest.raises(WeightsError, match=message):
            empty_engine(model).load_weights(sent, 0)


def test_a_failed_load_leaves_no_usable_weights() -> None:
    model = model_config()
    engine = engine_with(model)
    with pytest.raises(WeightsError):
        engine.load_weights(list(tensors(model))[:3], 4)
    with pytest.raises(RuntimeError, match="no weights"):
        engine.generate(requests(), SAMPLING)


def test_a_tied_model_does_not_take_a_head() -> None:
    model = model_config()
    head = ("lm_head.weight", torch.zeros(VOCAB, model.hidden_size))
    with pytest.raises(WeightsError, match="not in the model"):
        empty_engine(model).load_weights([*tensors(model), head], 0)

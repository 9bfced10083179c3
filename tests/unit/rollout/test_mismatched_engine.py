"""The engine that benchmarks/corrections.py mismatches on purpose is off as it says, and where it says."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.mismatched import Mismatch, MismatchedEngine
from megarl.diagnose.rounded_linear import rounded_to_integers
from megarl.megatron.models.qwen2 import hf_config
from megarl.rollout import Completion, SamplingParams
from tests.unit.megatron.hf import hf_model, tensor_names
from tests.unit.megatron.tiny import VOCAB, noisy_weights, tiny_recipe
from tests.unit.rollout.test_embedded_engine import engine_with, full_sequence_log_probs, requests

SEED, STOP, BITS = 11, 6, 4
MODEL = tiny_recipe().model
SAMPLING = SamplingParams(temperature=0.5, max_new_tokens=3, stop_token_id=STOP)


def mismatched(mismatch: Mismatch) -> MismatchedEngine:
    engine = MismatchedEngine(
        hf_config(MODEL, VOCAB), mismatch, seed=SEED, max_batch_size=100, device=torch.device("cpu")
    )
    read = noisy_weights(MODEL)
    engine.load_weights(((name, read(name)) for name in tensor_names(MODEL)), version=3)
    return engine


def by_the_row(x: Tensor) -> Tensor:
    """4 bits are the integers from -7 to 7: each number goes to the nearest of 15 levels of its row."""
    levels = torch.arange(-7, 8) / 7
    rows = x.reshape(-1, x.shape[-1])
    out = [levels[(row[:, None] / row.abs().max() - levels).abs().argmin(dim=1)] * row.abs().max() for row in rows]
    return torch.stack(out).view(x.shape)


def test_rounding_is_to_the_nearest_level_of_a_row() -> None:
    x = torch.randn(50, 24, generator=torch.Generator().manual_seed(0)) * torch.logspace(-20, 20, 50)[:, None]
    torch.testing.assert_close(rounded_to_integers(x, BITS), by_the_row(x), rtol=1e-6, atol=0.0)
    assert torch.equal(rounded_to_integers(torch.zeros(2, 3), BITS), torch.zeros(2, 3))


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_temperature_is_a_factor_of_the_recipes_and_the_log_probs_are_of_it(factor: float) -> None:
    told = mismatched(Mismatch(temperature=factor)).generate(requests(), SAMPLING)
    assert told == engine_with(MODEL).generate(requests(), replace(SAMPLING, temperature=factor * 0.5))


def test_linear_layers_are_rounded_and_the_head_is_not() -> None:
    network = hf_model(MODEL, noisy_weights(MODEL), torch.float32)
    for layer in network.model.layers.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data = by_the_row(layer.weight.data)
            layer.register_forward_pre_hook(lambda _, inputs: (by_the_row(inputs[0]), *inputs[1:]))
    completions = mismatched(Mismatch(BITS, BITS)).generate(requests(12), SAMPLING)

    def fits(completion: Completion) -> bool:
        wanted = full_sequence_log_probs(network, completion, SAMPLING.temperature)
        return torch.allclose(torch.tensor(completion.log_probs), wanted, rtol=0.0, atol=1e-5)

    # the two sum in other orders, and what lies within rounding of the middle between two levels may go either way
    assert sum(map(fits, completions)) >= 11
    exact = hf_model(MODEL, noisy_weights(MODEL), torch.float32)
    unlike = (full_sequence_log_probs(exact, each, 0.5) - torch.tensor(each.log_probs) for each in completions)
    assert torch.cat(list(unlike)).abs().mean() > 0.1


def test_it_evaluates_with_the_weights_that_it_was_sent() -> None:
    engine = mismatched(Mismatch(BITS, BITS, 0.8))
    engine.generate(requests(), SAMPLING)
    held_out = [replace(request, stream="evaluation") for request in requests()]
    assert engine.generate(held_out, SAMPLING) == engine_with(MODEL).generate(held_out, SAMPLING)

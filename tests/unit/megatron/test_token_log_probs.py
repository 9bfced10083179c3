"""Token log-probs and entropies, and their gradients, against float64 autograd."""

import pytest
import torch
from torch import Tensor

from megarl.megatron import log_probs as module
from megarl.megatron.distribution import Distribution, Sampling, VocabularyShard
from megarl.megatron.token_log_probs import token_log_probs

VOCAB = 11
both_paths = pytest.mark.usefixtures("path")


def at(temperature: float) -> Distribution:
    """Of a whole vocabulary, nothing truncated."""
    return Distribution(VocabularyShard(None, 0, VOCAB), Sampling(temperature))


def case(tokens: int, columns: int, scale: float = 3.0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Logits [N, columns], targets [N], and a weight for each log-prob and each entropy."""
    generator = torch.Generator().manual_seed(tokens)
    logits = (scale * torch.randn(tokens, columns, generator=generator)).to(dtype).requires_grad_()
    targets = torch.randint(0, VOCAB, (tokens,), generator=generator)
    # the first and the last real token, where there is room
    targets[:2] = torch.tensor([0, VOCAB - 1])[: len(targets[:2])]
    return logits, targets, *torch.randn(2, tokens, generator=generator)


def reference(
    logits: Tensor, targets: Tensor, temperature: float, weights: tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """Log-probs, entropies and the gradient of their weighted sum, in float64, over the real tokens alone."""
    leaf = logits.detach().double().requires_grad_()
    log_p = (leaf[:, :VOCAB] / temperature).log_softmax(-1)
    log_probs, entropy = log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    total = (weights[0].double() * log_probs).sum() + (weights[1].double() * entropy).sum()
    return log_probs.detach(), entropy.detach(), torch.autograd.grad(total, leaf)[0]


def ours(logits: Tensor, targets: Tensor, temperature: float, weights: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    log_probs, entropy, _ = token_log_probs(logits, targets, at(temperature))
    total = (weights[0] * log_probs).sum() + (weights[1] * entropy).sum()
    return log_probs.detach(), entropy.detach(), torch.autograd.grad(total, logits)[0]


@both_paths
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("columns", [VOCAB, VOCAB + 5], ids=["exact", "padded"])
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("chunk", [3, 4096])
def test_values_and_gradients(
    temperature: float, columns: int, tokens: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk * 4 * columns)
    logits, targets, *weights = case(tokens, columns)
    before = logits.detach().clone()
    got = ours(logits, targets, temperature, (weights[0], weights[1]))
    wanted = reference(logits, targets, temperature, (weights[0], weights[1]))
    for value, exact in zip(got, wanted, strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact, rtol=2e-6, atol=2e-6)
    assert (got[2][:, VOCAB:] == 0).all()
    assert torch.equal(logits.detach(), before)


def test_bf16_logits(path: str) -> None:
    logits, targets, *weights = case(7, VOCAB + 5, dtype=torch.bfloat16)
    log_probs, entropy, gradient = ours(logits, targets, 0.6, (weights[0], weights[1]))
    exact = reference(logits, targets, 0.6, (weights[0], weights[1]))
    assert log_probs.dtype == entropy.dtype == torch.float32 and gradient.dtype == torch.bfloat16
    torch.testing.assert_close(log_probs.double(), exact[0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(entropy.double(), exact[1], rtol=2e-6, atol=2e-6)
    # bf16 has 8 significant bits: rounding takes half a unit in the last place, 2^-8 of the value at most, and what
    # Triton's interpreter does in its place, cutting the rest off, a whole one
    rounding = 2**-7 if path == "kernels" else 2**-8
    torch.testing.assert_close(gradient.double(), exact[2], rtol=rounding, atol=1e-6)


@both_paths
@pytest.mark.parametrize("scale", [1e-4, 300.0])
def test_flat_and_peaked_distributions(scale: float) -> None:
    logits, targets, *weights = case(7, VOCAB + 5, scale)
    got = ours(logits, targets, 1.3, (weights[0], weights[1]))
    wanted = reference(logits, targets, 1.3, (weights[0], weights[1]))
    for value, exact in zip(got, wanted, strict=True):
        torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)


@both_paths
@pytest.mark.parametrize("which", [0, 1], ids=["log-prob", "entropy"])
def test_one_output_alone_can_be_used(which: int) -> None:
    logits, targets, *weights = case(7, VOCAB)
    weights[1 - which] = torch.zeros(7)
    output = token_log_probs(logits, targets, at(0.6))[which]
    (gradient,) = torch.autograd.grad((weights[which] * output).sum(), logits)
    exact = reference(logits, targets, 0.6, (weights[0], weights[1]))[2]
    torch.testing.assert_close(gradient.double(), exact, rtol=2e-6, atol=2e-6)


def test_shard_counts_its_real_columns() -> None:
    assert VocabularyShard.of(16, 11, None) == VocabularyShard(None, 0, 11)
    assert VocabularyShard.of(11, 11, None) == VocabularyShard(None, 0, 11)

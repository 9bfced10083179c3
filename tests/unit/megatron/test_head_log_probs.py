"""Log-probs, entropies and the exact KL fused over the output layer, and their gradients, against float64 autograd."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from megarl.megatron import log_probs as module
from megarl.megatron.distribution import Distribution, Sampling, VocabularyShard
from megarl.megatron.exact_kl import exact_kl
from megarl.megatron.head_log_probs import head_log_probs
from megarl.megatron.head_loss import head_loss

VOCAB, COLUMNS, HIDDEN = 11, 13, 6
SHARD = VocabularyShard(None, 0, VOCAB)
both_paths = pytest.mark.usefixtures("path")


def at(temperature: float) -> Distribution:
    """Of a whole vocabulary, nothing truncated."""
    return Distribution(SHARD, Sampling(temperature))


@dataclass(frozen=True)
class Case:
    """Inputs of both functions; the last columns pad the vocabulary, with logits that would show."""

    hidden: Tensor
    weight: Tensor
    reference_hidden: Tensor
    reference_weight: Tensor
    targets: Tensor
    log_prob_weights: Tensor
    entropy_weights: Tensor


def case(tokens: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Case:
    generator = torch.Generator().manual_seed(tokens)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    weights = []
    for _ in range(2):
        weight = scale * draw(COLUMNS, HIDDEN)
        weight[VOCAB:] = 100.0
        weights.append(weight.to(dtype))
    targets = torch.randint(0, VOCAB, (tokens,), generator=generator)
    targets[:2] = torch.tensor([0, VOCAB - 1])[: len(targets[:2])]
    hidden, reference_hidden = (draw(tokens, HIDDEN).to(dtype) for _ in range(2))
    return Case(
        hidden.requires_grad_(), weights[0].requires_grad_(), reference_hidden, weights[1], targets,
        draw(tokens), draw(tokens),
    )  # fmt: skip


def exact_log_softmax(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return (hidden @ weight[:VOCAB].t() / temperature).log_softmax(-1)


def reference(it: Case, temperature: float) -> tuple[Tensor, ...]:
    """Log-probs, entropies, and the gradients of their weighted sum by hidden states and weight, in float64."""
    hidden, weight = (x.detach().double().requires_grad_() for x in (it.hidden, it.weight))
    log_p = exact_log_softmax(hidden, weight, temperature)
    log_probs, entropy = log_p.gather(-1, it.targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    total = (it.log_prob_weights.double() * log_probs).sum() + (it.entropy_weights.double() * entropy).sum()
    return log_probs.detach(), entropy.detach(), *torch.autograd.grad(total, (hidden, weight))


def ours(it: Case, temperature: float) -> tuple[Tensor, ...]:
    log_probs, entropy, _ = head_log_probs(it.hidden, it.weight, it.targets, at(temperature))
    total = (it.log_prob_weights * log_probs).sum() + (it.entropy_weights * entropy).sum()
    return log_probs.detach(), entropy.detach(), *torch.autograd.grad(total, (it.hidden, it.weight))


@both_paths
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("chunk", [3, 4096])
def test_log_probs_and_entropies(temperature: float, tokens: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk * 4 * COLUMNS)
    it = case(tokens)
    for got, wanted in zip(ours(it, temperature), reference(it, temperature), strict=True):
        assert got.dtype == torch.float32
        # a logit of size 10 in fp32 is off by 1e-6, and so is all that follows from it
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


@both_paths
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("chunk", [3, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_with_its_gradient_formed_in_the_forward_pass(
    tokens: int, chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same arithmetic as with the logits formed anew; the loss is not linear, so each token needs its own slope."""
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk * 4 * COLUMNS)
    it = case(tokens, dtype=dtype)

    def token_loss(log_probs: Tensor, entropy: Tensor, rows: slice) -> Tensor:
        return (it.log_prob_weights[rows] * log_probs.exp() + it.entropy_weights[rows] * entropy.square()).sum()

    got = head_loss(it.hidden, it.weight, it.targets, at(0.6), token_loss)
    wanted = token_loss(*head_log_probs(it.hidden, it.weight, it.targets, at(0.6))[:2], slice(None))
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    # a scale from outside, as the schedule's and the optimizer's
    gradients = [torch.autograd.grad(3 * loss, (it.hidden, it.weight)) for loss in (got, wanted)]
    for gradient, exact in zip(*gradients, strict=True):
        assert gradient.dtype == dtype
        if tokens:
            # bf16 rounds a token's slope, each product and their sum, and here the factor 3 comes before or after that
            bound = 1e-5 if dtype == torch.float32 else 2**-6
            assert (gradient - exact).abs().max() <= bound * exact.abs().max()
    with torch.no_grad():
        assert torch.equal(head_loss(it.hidden, it.weight, it.targets, at(0.6), token_loss), got)


@both_paths
def test_padding_of_the_vocabulary_has_no_gradient() -> None:
    assert (ours(case(7), 1.0)[3][VOCAB:] == 0).all()


@both_paths
def test_values_that_the_loss_leaves_out_have_no_gradient() -> None:
    it = case(7)
    for which, weights in enumerate((it.log_prob_weights, it.entropy_weights)):
        total = (weights * head_log_probs(it.hidden, it.weight, it.targets, at(1.0))[which]).sum()
        got = torch.autograd.grad(total, (it.hidden, it.weight))
        blank = torch.zeros_like(weights)
        both = (weights, blank) if which == 0 else (blank, weights)
        alone = Case(it.hidden, it.weight, it.reference_hidden, it.reference_weight, it.targets, *both)
        for gradient, wanted in zip(got, reference(alone, 1.0)[2:], strict=True):
            torch.testing.assert_close(gradient.double(), wanted, rtol=1e-5, atol=1e-5)


@both_paths
def test_bf16() -> None:
    it = case(7, dtype=torch.bfloat16)
    got, wanted = ours(it, 0.6), reference(it, 0.6)
    assert [value.dtype for value in got] == [torch.float32] * 2 + [torch.bfloat16] * 2
    # the product is rounded to bf16: half a unit in the last of 8 places of a logit of up to 8, over the temperature
    rounding = 8 * 2**-9 / 0.6
    for value, exact in zip(got[:2], wanted[:2], strict=True):
        torch.testing.assert_close(value.double(), exact, rtol=0.0, atol=2 * rounding)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("chunk", [3, 4096])
@pytest.mark.parametrize("scale", [0.1, 1.0, 6.0], ids=["near", "far", "log-ratios of 40"])
def test_exact_kl(temperature: float, tokens: int, chunk: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk * 4 * COLUMNS)
    it = case(tokens, scale)
    hidden, weight = (x.detach().double().requires_grad_() for x in (it.hidden, it.weight))
    log_p = exact_log_softmax(hidden, weight, temperature)
    log_q = exact_log_softmax(it.reference_hidden.double(), it.reference_weight.double(), temperature)
    if scale > 1 and tokens > 1:
        assert (log_p - log_q).abs().max() > 40
    wanted = (log_p.exp() * (log_p - log_q)).sum(-1)
    wanted_gradients = torch.autograd.grad((it.log_prob_weights * wanted).sum(), (hidden, weight))
    got = exact_kl(it.hidden, it.weight, it.reference_hidden, it.reference_weight, at(temperature))
    gradients = torch.autograd.grad((it.log_prob_weights * got).sum(), (it.hidden, it.weight))
    pairs = ((it.hidden, it.weight), (it.reference_hidden, it.reference_weight))
    for value, exact in ((got, wanted), *zip(gradients, wanted_gradients, strict=True)):
        # the log-ratio is off by a few units in the last place of the largest logit, and enters times a token's weight,
        # over the temperature, times the other factor of the logit
        logit = max((x @ w[:VOCAB].t()).abs().max().item() for x, w in pairs) / temperature if tokens else 0.0
        factor = max(1.0, it.weight.abs()[:VOCAB].max().item()) * max(1.0, it.log_prob_weights.abs().sum().item())
        torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=4 * 2**-23 * logit / temperature * factor)
    assert (gradients[1][VOCAB:] == 0).all()


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 6.0], ids=["ratio 1", "e^+-1", "far", "log-ratios of 40"])
def test_in_float64_values_and_gradients_are_those_of_the_formulas(scale: float) -> None:
    """To 1e-6, of which fp64 needs nothing: what fp32 adds to it is rounding alone."""
    it = case(7, scale, torch.float64)
    hidden, weight = (x.detach().requires_grad_() for x in (it.hidden, it.weight))
    log_p = exact_log_softmax(hidden, weight, 0.6)
    log_q = exact_log_softmax(it.reference_hidden, it.reference_weight, 0.6)
    formulas = (
        log_p.gather(-1, it.targets[:, None])[:, 0],
        -(log_p.exp() * log_p).sum(-1),
        (log_p.exp() * (log_p - log_q)).sum(-1),
    )
    ours = (
        *head_log_probs(it.hidden, it.weight, it.targets, at(0.6))[:2],
        exact_kl(it.hidden, it.weight, it.reference_hidden, it.reference_weight, at(0.6)),
    )
    for got, wanted in zip(ours, formulas, strict=True):
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-12)
        by_ours = torch.autograd.grad((it.log_prob_weights * got).sum(), (it.hidden, it.weight), retain_graph=True)
        by_formula = torch.autograd.grad((it.log_prob_weights * wanted).sum(), (hidden, weight), retain_graph=True)
        for gradient, exact in zip(by_ours, by_formula, strict=True):
            # relative to the largest entry: others are sums of its size that cancel
            assert (gradient - exact).abs().max() <= 1e-6 * exact.abs().max()


def test_exact_kl_is_never_negative_and_0_from_itself() -> None:
    it = case(200)
    near = it.weight.detach() + 1e-5 * torch.randn(it.weight.shape, generator=torch.Generator().manual_seed(1))
    assert (exact_kl(it.hidden, it.weight, it.hidden, near, at(1.0)) >= 0).all()
    itself = exact_kl(it.hidden, it.weight, it.hidden, it.weight, at(1.0))
    assert (itself == 0).all()
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(itself.sum(), (it.hidden, it.weight)))

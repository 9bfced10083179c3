"""Log-probs, entropies, the exact KL and the token-local loss on a GPU, against float64 on the CPU."""

import pytest
import torch
from torch import Tensor

from megarl.megatron.distribution import Distribution, Sampling, VocabularyShard
from megarl.megatron.exact_kl import exact_kl
from megarl.megatron.head_log_probs import head_log_probs
from megarl.megatron.head_loss import head_loss

TOKENS, HIDDEN, VOCAB, COLUMNS, TEMPERATURE = 300, 64, 5_000, 5_008, 0.8
DISTRIBUTION = Distribution(VocabularyShard(None, 0, VOCAB), Sampling(TEMPERATURE))
# units in the last place of a number of size 1 in each format, times the terms of a logit that round alike
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Hidden states and weights of policy and reference, and targets; what pads the vocabulary would show."""
    generator = torch.Generator().manual_seed(3)
    hidden, reference_hidden = (torch.randn(TOKENS, HIDDEN, generator=generator) for _ in range(2))
    weight, reference_weight = (0.2 * torch.randn(COLUMNS, HIDDEN, generator=generator) for _ in range(2))
    weight[VOCAB:] = reference_weight[VOCAB:] = 10.0
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=generator)
    return (*(x.to(dtype) for x in (hidden, weight, reference_hidden, reference_weight)), targets)


def exact(hidden: Tensor, weight: Tensor) -> Tensor:
    return (hidden.double() @ weight.double()[:VOCAB].t() / TEMPERATURE).log_softmax(-1)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_values_and_gradients(dtype: torch.dtype) -> None:
    hidden, weight, reference_hidden, reference_weight, targets = inputs(dtype)
    leaves = [x.double().requires_grad_() for x in (hidden, weight)]
    log_p, log_q = exact(*leaves), exact(reference_hidden, reference_weight)
    wanted = [
        log_p.gather(-1, targets[:, None])[:, 0],
        -(log_p.exp() * log_p).sum(-1),
        (log_p.exp() * (log_p - log_q)).sum(-1),
    ]
    wanted_gradients = torch.autograd.grad(sum(value.sum() for value in wanted), leaves)
    on_gpu = [x.cuda() for x in (hidden, weight, reference_hidden, reference_weight, targets)]
    own = [x.requires_grad_() for x in on_gpu[:2]]
    got = [
        *head_log_probs(own[0], own[1], on_gpu[4], DISTRIBUTION)[:2],
        exact_kl(own[0], own[1], on_gpu[2], on_gpu[3], DISTRIBUTION),
    ]
    gradients = torch.autograd.grad(sum(value.sum() for value in got), own)
    for value, of_float64 in zip([*got, *gradients], [*wanted, *wanted_gradients], strict=True):
        error = (value.detach().double().cpu() - of_float64.detach()).abs().max()
        assert error <= ROUNDING[dtype] * of_float64.detach().abs().max()


def test_the_token_local_loss_has_the_same_gradient() -> None:
    hidden, weight, _, _, targets = (x.cuda() for x in inputs(torch.float32))
    own = [hidden.requires_grad_(), weight.requires_grad_()]
    local = head_loss(*own, targets, DISTRIBUTION, lambda log_probs, _, rows: log_probs.exp().sum())
    whole = head_log_probs(*own, targets, DISTRIBUTION)[0].exp().sum()
    for got, wanted in zip(torch.autograd.grad(local, own), torch.autograd.grad(whole, own), strict=True):
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()

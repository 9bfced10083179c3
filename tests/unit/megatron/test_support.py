"""Truncated sampling: floors against a count by hand; log-probs, entropies and gradients against a masked softmax."""

import pytest
import torch
from torch import Tensor

from megarl.megatron import log_probs as module
from megarl.megatron import support
from megarl.megatron.distribution import Distribution, Sampling, VocabularyShard
from megarl.megatron.exact_kl import exact_kl
from megarl.megatron.head_log_probs import head_log_probs
from megarl.megatron.head_loss import head_loss
from megarl.megatron.log_probs import scaled_logits
from megarl.megatron.support import support_floor
from megarl.megatron.token_log_probs import token_log_probs

VOCAB, COLUMNS, HIDDEN, TOKENS = 23, 26, 6, 40
SHARD = VocabularyShard(None, 0, VOCAB)
SAMPLINGS = [
    Sampling(top_k=5),
    Sampling(top_p=0.8),
    Sampling(0.6, top_p=0.95),
    Sampling(1.4, top_p=0.7, top_k=6),
    # one token stays, but for ties and the target
    Sampling(top_p=1e-6),
    Sampling(top_k=1),
    # nothing is left out
    Sampling(top_p=1 - 2**-24, top_k=10 * VOCAB),
]


def logits(tokens: int = TOKENS, dtype: torch.dtype = torch.float32, ties: bool = False) -> Tensor:
    """With three columns of padding that would be the likeliest; with ties, a handful of different numbers."""
    found = 2 * torch.randn(tokens, COLUMNS, generator=torch.Generator().manual_seed(tokens))
    found = found.round() if ties else found
    found[:, VOCAB:] = 50.0
    return found.to(dtype)


def left_by_hand(row: list[float], sampling: Sampling) -> list[bool]:
    """Which of some scaled logits are left, by going down from the likeliest; whole groups of equal ones at a time."""
    values = sorted(row, reverse=True)
    least = values[min(sampling.top_k, len(row)) - 1] if sampling.top_k else values[-1]
    mass = torch.tensor(row, dtype=torch.float64).where(torch.tensor(row) >= least, -torch.inf).softmax(0).tolist()
    if sampling.top_p < 1:
        reached = 0.0
        for value in sorted(set(row), reverse=True):
            reached += sum(p for p, x in zip(mass, row, strict=True) if x == value)
            if reached >= sampling.top_p:
                least = max(least, value)
                break
    return [x >= least for x in row]


def left(case: Tensor, sampling: Sampling) -> Tensor:
    """The same of every row, bool [N, VOCAB]."""
    rows = (case[:, :VOCAB] / sampling.temperature).tolist()
    return torch.tensor([left_by_hand(row, sampling) for row in rows])


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("first", [1, 3, 128])
def test_floor_leaves_what_a_count_by_hand_leaves(
    sampling: Sampling, ties: bool, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many candidates top-p starts from, and however few rows it takes at once."""
    monkeypatch.setattr(support, "_FIRST_CANDIDATES", first)
    monkeypatch.setattr(support, "_CANDIDATES_BYTES", 7 * first * support._CANDIDATE_BYTES)
    case = logits(ties=ties)
    scaled = scaled_logits(case.clone(), Distribution(SHARD, sampling))
    floor = support_floor(scaled, Distribution(SHARD, sampling))
    assert floor is not None and floor.shape == (TOKENS,)
    wanted = left(case, sampling)
    assert torch.equal((scaled >= floor[:, None])[:, :VOCAB], wanted)
    assert wanted.any(1).all()
    # the case cuts somewhere between one token and all, unless it is one of the three at the ends
    if sampling.top_k not in (1, 10 * VOCAB) and sampling.top_p > 0.1:
        assert (wanted.sum(1) > 1).any() and not wanted.all()


def test_flat_rows_need_the_whole_vocabulary() -> None:
    """Beside a peaked one, which its first candidates settle."""
    case = torch.linspace(0, 1e-3, 3000)[torch.randperm(3000, generator=torch.Generator().manual_seed(0))]
    case = torch.stack([case, 1e5 * case, case.flip(0)])
    shard = VocabularyShard(None, 0, 3000)
    floor = support_floor(case.clone(), Distribution(shard, Sampling(top_p=0.9)))
    assert floor is not None
    kept = (case >= floor[:, None]).sum(1)
    # equal to 1e-3, so 2,700 tokens less the tilt: half of 1e-3 times .1 of them; 1e5 times steeper: a geometric series
    # of ratio e^(-100 / 2999), which reaches .9 after ln(10) 2999 / 100 = 69.05 tokens
    assert 2695 <= kept[0] == kept[2] <= 2700
    assert kept[1] == 70


def test_nothing_is_worked_out_where_nothing_is_truncated() -> None:
    assert support_floor(logits(), Distribution(SHARD, Sampling(0.7))) is None
    scores = token_log_probs(logits(), torch.zeros(TOKENS, dtype=torch.int64), Distribution(SHARD, Sampling(0.7)))
    assert scores.outside_N is None


def exact(
    log_softmax_of: Tensor, keep: Tensor, targets: Tensor, weights: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and their weighted sum of a softmax over what is kept and the target."""
    keep = keep.scatter(1, targets[:, None], True)
    log_p = log_softmax_of.masked_fill(~keep, -torch.inf).log_softmax(-1)
    log_probs = log_p.gather(-1, targets[:, None])[:, 0]
    finite = log_p.where(keep, 0.0)
    entropy = -(finite.exp() * finite * keep).sum(-1)
    return log_probs, entropy, (weights[0] * log_probs).sum() + (weights[1] * entropy).sum()


def drawn(count: int = TOKENS) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Targets, both ends of the vocabulary among them, and weights of log-probs and entropies, fp64."""
    generator = torch.Generator().manual_seed(7)
    targets = torch.randint(0, VOCAB, (count,), generator=generator)
    targets[:2] = torch.tensor([0, VOCAB - 1])
    first, second = torch.randn(2, count, generator=generator, dtype=torch.float64)
    return targets, (first, second)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("chunk", [7, 4096])
def test_logits_to_values_and_gradients(
    sampling: Sampling, ties: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk * 4 * COLUMNS)
    case = logits(ties=ties).requires_grad_()
    targets, weights = drawn()
    keep = left(case.detach(), sampling)
    leaf = case.detach().double().requires_grad_()
    wanted = exact(leaf[:, :VOCAB] / sampling.temperature, keep, targets, weights)
    got = token_log_probs(case, targets, Distribution(SHARD, sampling))
    total = (weights[0] * got.log_probs_N).sum() + (weights[1] * got.entropy_N).sum()
    pairs = [
        (got.log_probs_N, wanted[0]),
        (got.entropy_N, wanted[1]),
        (torch.autograd.grad(total, case)[0], torch.autograd.grad(wanted[2], leaf)[0]),
    ]
    for value, of_float64 in pairs:
        # a logit of up to 16 over the temperature in fp32 is off by 1e-6
        torch.testing.assert_close(value.double(), of_float64, rtol=5e-6, atol=5e-6)
    assert got.outside_N is not None
    outside = ~keep.gather(1, targets[:, None])[:, 0]
    assert torch.equal(got.outside_N, outside)
    assert (pairs[2][0][:, :VOCAB][~keep.scatter(1, targets[:, None], True)] == 0).all()
    assert (pairs[2][0][:, VOCAB:] == 0).all()
    if sampling.top_k != 10 * VOCAB:
        assert outside.any(), "some targets must be outside"


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("chunk", [7, 4096])
def test_output_layer_to_values_and_gradients(sampling: Sampling, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed and formed in the forward pass, in fp64, where rounding moves no token across the floor."""
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk * 4 * COLUMNS)
    generator = torch.Generator().manual_seed(11)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(COLUMNS, HIDDEN, generator=generator, dtype=torch.float64)
    weight[VOCAB:] = 30.0
    weight.requires_grad_()
    targets, weights = drawn()
    product = hidden @ weight.t()
    keep = left(product.detach(), sampling)
    log_probs, entropy, total = exact(product[:, :VOCAB] / sampling.temperature, keep, targets, weights)
    got = head_log_probs(hidden, weight, targets, Distribution(SHARD, sampling))
    torch.testing.assert_close(got.log_probs_N, log_probs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.entropy_N, entropy, rtol=1e-9, atol=1e-9)

    def token_loss(log_probs_n: Tensor, entropy_n: Tensor, rows: slice) -> Tensor:
        return (weights[0][rows] * log_probs_n).sum() + (weights[1][rows] * entropy_n).sum()

    local = head_loss(hidden, weight, targets, Distribution(SHARD, sampling), token_loss)
    torch.testing.assert_close(local, total, rtol=1e-9, atol=1e-9)
    wanted = torch.autograd.grad(total, (hidden, weight))
    for loss in (token_loss(got.log_probs_N, got.entropy_N, slice(None)), local):
        for gradient, by_autograd in zip(torch.autograd.grad(loss, (hidden, weight)), wanted, strict=True):
            torch.testing.assert_close(gradient, by_autograd, rtol=1e-9, atol=1e-9)


def test_gradients_are_finite_differences() -> None:
    """With the supports held: a step of 1e-6 moves no token across a floor."""
    sampling = Sampling(0.8, top_p=0.8, top_k=9)
    case = logits(8, torch.float64)[:, :VOCAB].clone().requires_grad_()
    targets = drawn(8)[0]
    assert torch.autograd.gradcheck(
        lambda x: token_log_probs(x, targets, Distribution(SHARD, sampling))[:2], (case,), eps=1e-6, atol=1e-6
    )


def test_a_target_outside_keeps_a_finite_log_prob_and_a_gradient() -> None:
    row = torch.tensor([[5.0, 4.0, 1.0, 0.0]], requires_grad=True)
    shard = VocabularyShard(None, 0, 4)
    scores = token_log_probs(row, torch.tensor([3]), Distribution(shard, Sampling(top_k=2)))
    wanted = -torch.tensor([5.0, 4.0, 0.0], dtype=torch.float64).logsumexp(0)
    torch.testing.assert_close(scores.log_probs_N.double(), wanted[None], rtol=1e-6, atol=0.0)
    (gradient,) = torch.autograd.grad(scores.log_probs_N.sum(), row)
    assert gradient[0, 2] == 0 and gradient[0, 3] > 0.9


def test_the_exact_kl_refuses_a_truncated_distribution() -> None:
    hidden, weight = torch.ones(2, HIDDEN), torch.ones(COLUMNS, HIDDEN)
    with pytest.raises(ValueError, match="infinite where two supports differ"):
        exact_kl(hidden, weight, hidden, weight, Distribution(SHARD, Sampling(top_p=0.9)))

"""The softmax kernels of one rank's columns against float64; tests/gpu runs the same on a GPU."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.triton_here import interprets_kernels

pytestmark = interprets_kernels

START, VALID, COLUMNS, TOKENS, BLOCK = 40, 29, 33, 12, 8
# an fp32 logit of size 10, over the temperature, is off by 2^-24 of that, and log z with it
TOLERANCE = {"rtol": 2e-6, "atol": 2e-6}
# what fp32 is rounded to for the gradient; Triton's interpreter cuts off in its place: a unit in the last place
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row then has several, the last of them not full, and padding begins within one."""
    from megarl.platform.cuda import softmax

    monkeypatch.setattr(softmax, "BLOCK", BLOCK)


@dataclass(frozen=True)
class Case:
    """Logits [N, V] and targets [N], of which some are other ranks' tokens; the rest is one number a token."""

    logits: Tensor
    targets: Tensor
    floor: Tensor | None
    by_log_probs: Tensor
    by_entropy: Tensor


def case(dtype: torch.dtype, support: str, device: str, scale: float) -> Case:
    """With a support of 3 tokens, each row's floor is its third largest logit, so that only `strictly below` is out.

    The target is the largest, the smallest, or anything, another rank's included.
    """
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(TOKENS, COLUMNS, generator=generator)).to(dtype)
    # what pads the vocabulary must not be read
    logits[:, VALID:] = float("nan")
    targets = torch.randint(START - 20, START + VALID + 20, (TOKENS,), generator=generator)
    targets[0], targets[1] = START + logits[0, :VALID].argmax(), START + logits[1, :VALID].argmin()
    targets[2], targets[3], targets[4] = START, START + VALID - 1, START + VALID
    scaled = logits[:, :VALID].float() * scale
    floors = {"all": None, "3 tokens": scaled.topk(3).values[:, -1], "none": scaled.amax(-1) + 1}
    by_log_probs, by_entropy = torch.randn(2, TOKENS, generator=generator)
    floor = floors[support]
    return Case(
        logits.to(device), targets.to(device), None if floor is None else floor.to(device),
        by_log_probs.to(device), by_entropy.to(device),
    )  # fmt: skip


def scaled_and_inside(it: Case, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Float64 scaled logits [N, V], which of them are in the support, and the target's one-hot rows."""
    is_target = torch.arange(COLUMNS, device=it.targets.device) == it.targets[:, None] - START
    is_target[:, VALID:] = False
    inside = torch.ones_like(is_target)
    if it.floor is not None:
        inside = is_target | ~(it.logits.float() * scale < it.floor[:, None])
    inside[:, VALID:] = False
    return it.logits.double() * scale, inside, is_target


@pytest.mark.parametrize("scale", [1.0, 1 / 0.6])
@pytest.mark.parametrize("support", ["all", "3 tokens", "none"])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_statistics(dtype: torch.dtype, support: str, scale: float, device: str, block: None) -> None:
    from megarl.platform.cuda.softmax import softmax_statistics

    it = case(dtype, support, device, scale)
    x, inside, is_target = scaled_and_inside(it, scale)
    found = softmax_statistics(it.logits, it.targets, scale, START, VALID, it.floor).double()
    some = inside.any(-1)
    assert some.all() or support == "none"
    top = x.where(inside, -torch.inf).amax(-1)
    exponentials = (x - top[:, None]).exp().where(inside, 0.0)
    weighted = (exponentials * (x - top[:, None]).where(inside, 0.0)).sum(-1)
    target = x.where(is_target, 0.0).sum(-1)
    wanted = torch.stack([top, exponentials.sum(-1), weighted, target], -1)
    torch.testing.assert_close(found[some], wanted[some], **TOLERANCE)
    assert (found[~some] == torch.tensor([-1e30, 0, 0, 0], device=device).double()).all()


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1 / 0.6])
@pytest.mark.parametrize("support", ["all", "3 tokens", "none"])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_gradient(dtype: torch.dtype, support: str, scale: float, entropy: bool, device: str, block: None) -> None:
    from megarl.platform.cuda.softmax import softmax_gradient

    it = case(dtype, support, device, scale)
    x, inside, is_target = scaled_and_inside(it, scale)
    # as if other ranks held as much again, so that these columns' probabilities do not sum to 1
    log_z = (x.where(inside, -torch.inf).logsumexp(-1).nan_to_num(neginf=0.0) + 0.7).float()
    entropy_N = torch.linspace(0.1, 3, TOKENS, device=device)
    log_p = (x - log_z[:, None].double()).where(inside, -1e30)
    slope = it.by_log_probs.double()[:, None] * torch.ones_like(x)
    if entropy:
        slope += it.by_entropy.double()[:, None] * (log_p + entropy_N.double()[:, None]).where(inside, 0.0)
    wanted = scale * (is_target * it.by_log_probs.double()[:, None] - log_p.exp() * slope)
    by_entropy = it.by_entropy if entropy else None
    values = (it.targets, log_z, entropy_N, it.by_log_probs, by_entropy, scale, START, VALID, it.floor)
    out = torch.full_like(it.logits, torch.nan)
    softmax_gradient(it.logits, *values, out_NV=out)
    torch.testing.assert_close(out.double(), wanted, rtol=ROUNDING[dtype], atol=2e-6)
    assert (out[~inside] == 0).all()
    softmax_gradient(it.logits, *values, out_NV=it.logits)
    assert torch.equal(it.logits, out)


def test_rows_beyond_2_to_the_31_numbers(device: str, block: None) -> None:
    """Four rows, 2^30 apart in memory that is otherwise never touched: 32-bit offsets would reach before it."""
    from megarl.platform.cuda.softmax import softmax_gradient, softmax_statistics

    apart, rows = 2**30, 4
    memory = torch.empty((rows - 1) * apart + COLUMNS, dtype=torch.bfloat16, device=device)
    far = memory.as_strided((rows, COLUMNS), (apart, 1))
    near = case(torch.bfloat16, "all", device, 1.0).logits[:rows]
    far.copy_(near)
    targets, numbers = torch.full((rows,), START, device=device), torch.ones(rows, device=device)
    statistics = [softmax_statistics(logits, targets, 1.0, START, VALID) for logits in (near, far)]
    assert torch.equal(*statistics)
    for logits in (near, far):
        softmax_gradient(logits, targets, numbers, numbers, numbers, None, 1.0, START, VALID, out_NV=logits)
    assert torch.equal(near, far)


def test_a_nan_shows(device: str, block: None) -> None:
    from megarl.platform.cuda.softmax import softmax_statistics

    it = case(torch.float32, "3 tokens", device, 1.0)
    it.logits[5, 3] = torch.nan
    total = softmax_statistics(it.logits, it.targets, 1.0, START, VALID, it.floor)[:, 1]
    assert total.isnan().tolist() == [row == 5 for row in range(TOKENS)]


def test_a_gradient_that_is_one_number_in_all(device: str, block: None) -> None:
    """Such as autograd makes of a sum's."""
    from megarl.platform.cuda.softmax import softmax_gradient

    it = case(torch.float32, "all", device, 1.0)
    numbers = torch.ones(TOKENS, device=device)
    outs = [torch.empty_like(it.logits) for _ in range(2)]
    for one, out in zip((numbers, numbers[:1].expand(TOKENS)), outs, strict=True):
        softmax_gradient(it.logits, it.targets, numbers, numbers, one, one, 1.0, START, VALID, out_NV=out)
    assert torch.equal(*outs)


def test_logits_that_are_not_the_kernels(device: str, block: None) -> None:
    from megarl.platform.cuda.softmax import softmax_statistics

    targets = torch.zeros(4, dtype=torch.int64, device=device)
    for logits in (torch.zeros(4, 4, device=device).double(), torch.zeros(4, 8, device=device)[:, ::2]):
        with pytest.raises(ValueError, match="are not the kernels'"):
            softmax_statistics(logits, targets, 1.0, 0, 4)

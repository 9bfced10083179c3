"""The softmax kernels on a GPU: the cases that the interpreter runs, and torch's operations beside them."""

import pytest
import torch
from torch import Tensor

from megarl.megatron import chunk_logits
from megarl.megatron.distribution import Distribution, Sampling, VocabularyShard
from megarl.megatron.log_probs import GPU_CHUNK_TOKENS
from megarl.megatron.token_log_probs import token_log_probs
from tests.unit.platform.test_softmax_kernels import (  # noqa: F401
    test_a_gradient_that_is_one_number_in_all,
    test_a_nan_shows,
    test_gradient,
    test_logits_that_are_not_the_kernels,
    test_rows_beyond_2_to_the_31_numbers,
    test_statistics,
)

# more than one chunk and several blocks, neither of them full
TOKENS, VOCAB, COLUMNS, TEMPERATURE = GPU_CHUNK_TOKENS + 300, 20_001, 20_008, 0.7
# of values near 10 in fp32, a sum over the vocabulary; the gradient is then rounded, half a unit in the last place
VALUE = 1e-5
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture
def device() -> str:
    return "cuda"


@pytest.fixture(params=[16, 4096])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a part of a row, and of more than one."""
    from megarl.platform.cuda import softmax

    monkeypatch.setattr(softmax, "BLOCK", request.param)


@pytest.mark.parametrize("truncation", [(1.0, 0), (0.9, 50)], ids=["all", "top-p and top-k"])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_the_kernels_give_what_torchs_operations_give(
    dtype: torch.dtype, truncation: tuple[float, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution = Distribution(VocabularyShard(None, 0, VOCAB), Sampling(TEMPERATURE, *truncation))
    generator = torch.Generator().manual_seed(4)
    logits = (3 * torch.randn(TOKENS, COLUMNS, generator=generator)).to("cuda", dtype).requires_grad_()
    targets = torch.randint(0, VOCAB, (TOKENS,), generator=generator).cuda()
    weights = torch.randn(2, TOKENS, generator=generator).cuda()

    def scored() -> list[Tensor]:
        outputs = token_log_probs(logits, targets, distribution)[:2]
        total = sum((weight * output).sum() for weight, output in zip(weights, outputs, strict=True))
        return [*(output.detach() for output in outputs), torch.autograd.grad(total, logits)[0]]

    assert chunk_logits.takes_kernels(logits)
    by_kernels = scored()
    monkeypatch.setattr(chunk_logits, "takes_kernels", lambda _: False)
    by_torch = scored()
    for kernel, wanted in zip(by_kernels[:2], by_torch[:2], strict=True):
        torch.testing.assert_close(kernel, wanted, rtol=VALUE, atol=VALUE)
    # both round, so that they may be one unit in the last place apart
    torch.testing.assert_close(by_kernels[2], by_torch[2], rtol=2 * ROUNDING[dtype], atol=1e-6)

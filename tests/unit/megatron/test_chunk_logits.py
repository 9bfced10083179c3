"""Where logits are worked through, and what a GPU machine without Triton is told."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from megarl.config.errors import UserError
from megarl.megatron import chunk_logits as module
from megarl.megatron.chunk_logits import TorchLogits, chunk_logits, takes_kernels
from megarl.megatron.distribution import Distribution, VocabularyShard
from megarl.megatron.log_probs import GPU_CHUNK_TOKENS, chunks
from megarl.platform import kernel_support

WHOLE = Distribution(VocabularyShard(None, 0, 4))


def test_no_silent_fallback_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_support, "has_triton", lambda: False)
    # the CPU's logits stand for a GPU's
    monkeypatch.setattr(module, "takes_kernels", lambda _: True)
    module._kernels.cache_clear()
    with pytest.raises(UserError, match="triton is not installed; install the version that torch's own requirements"):
        chunk_logits(torch.zeros(2, 4), WHOLE)


def test_the_kernels_take_what_is_on_a_gpu_but_fp64() -> None:
    assert isinstance(chunk_logits(torch.zeros(2, 4), WHOLE), TorchLogits)
    # tensors without storage, which can be on any device
    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            logits = torch.zeros(2, 4, dtype=dtype).new_empty(2, 4, device="cuda")
            assert takes_kernels(logits) == (dtype != torch.float64)


@pytest.mark.parametrize("columns", [11, 150_000])
def test_a_gpus_chunk_is_of_tokens(columns: int) -> None:
    slices = list(chunks(2 * GPU_CHUNK_TOKENS + 1, columns, torch.device("cuda")))
    assert [piece.start for piece in slices] == [0, GPU_CHUNK_TOKENS, 2 * GPU_CHUNK_TOKENS]

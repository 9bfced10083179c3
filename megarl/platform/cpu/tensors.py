"""Methods of tensors and modules that name CUDA."""

import functools
from typing import Any

import torch


def _tensor_cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return self


def _module_cuda(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    return self


def patch_tensors() -> None:
    """Makes `.cuda()` the identity and `Tensor.type()` answer with CUDA's name for the type.

    `.cuda()` raises. `type()` does not, but Megatron's optimizers sort parameters by comparing it with names such as
    'torch.cuda.FloatTensor' and refuse every other. `type(dtype)`, which converts, is left alone.
    """
    torch_type = torch.Tensor.type

    @functools.wraps(torch_type)
    def tensor_type(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = torch_type(self, *args, **kwargs)
        if isinstance(answer, str) and not answer.startswith("torch.cuda."):
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer

    tensor: Any = torch.Tensor
    tensor.type = tensor_type
    tensor.cuda = _tensor_cuda
    module: Any = torch.nn.Module
    module.cuda = _module_cuda

"""Values by one function, gradients by another that is the same but for rounding."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def exactly(exact: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """exact(*inputs), with the gradient of plain(*inputs).

    Args:
        exact: of the inputs; nothing of it is differentiated.
        plain: of the inputs, to a tensor of the same shape and dtype, in torch's own operations.
        inputs: tensors.
    """
    output: Tensor = _Exactly.apply(exact, plain, *inputs)  # type: ignore[no-untyped-call]
    return output


class _Exactly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.plain = plain
        ctx.save_for_backward(*inputs)
        return exact(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        leaves = [x.detach().requires_grad_(needs) for x, needs in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad():
            output = ctx.plain(*leaves)
        found = iter(torch.autograd.grad(output, [leaf for leaf in leaves if leaf.requires_grad], grad))
        return None, None, *(next(found) if needs else None for needs in needed)

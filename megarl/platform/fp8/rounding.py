"""How the operands of a linear layer's three products are rounded, by recipe."""

import torch
from torch import Tensor

from megarl.config.precision import FP8Config
from megarl.platform.fp8.blocks import quantise_blocks, quantise_mx
from megarl.platform.fp8.cast import E4M3, GRADIENTS, Quantised, amax, quantise, scale_of
from megarl.platform.fp8.delayed import DelayedScale

ROLES = ("input", "weight", "gradient")
BLOCK, MX_BLOCK = 128, 32


class Rounding(torch.nn.Module):
    """One layer's rounding.

    Blocks lie along the dimension that a product sums over, so that their scales factor out of its sums: an operand of
    two products is rounded once for each, both times from the unrounded one, as Transformer Engine does. Blockwise, the
    weight's blocks are 128 x 128, the same in both.

    Attributes:
        delayed: the scales of the roles, for recipe=delayed.
    """

    def __init__(self, config: FP8Config) -> None:
        super().__init__()
        self.config = config
        self.dtypes = {"input": E4M3, "weight": E4M3, "gradient": GRADIENTS[config.format]}
        scales = {
            role: DelayedScale(config.history, config.history_algorithm, dtype) for role, dtype in self.dtypes.items()
        }
        self.delayed = torch.nn.ModuleDict(scales if config.recipe == "delayed" else {})

    @property
    def is_directed(self) -> bool:
        """Whether an operand is another one when it is summed over its other dimension."""
        return self.config.recipe in ("blockwise", "mxfp8")

    def __call__(self, x: Tensor, role: str, along: int, *, record: bool = False) -> Quantised:
        """An operand in FP8.

        Args:
            x: [rows, columns], floating point.
            role: see `ROLES`.
            along: the dimension that the product sums over.
            record: whether its largest value enters the history of delayed scaling.
        """
        dtype = self.dtypes[role]
        if self.config.recipe == "tensorwise":
            return quantise(x, scale_of(amax(x), dtype), dtype)
        if self.config.recipe == "delayed":
            return quantise(x, self.delayed[role](x, record=record), dtype)
        if self.config.recipe == "mxfp8":
            return quantise_mx(x, (1, MX_BLOCK) if along == 1 else (MX_BLOCK, 1), dtype)
        line = (1, BLOCK) if along == 1 else (BLOCK, 1)
        block = (BLOCK, BLOCK) if role == "weight" else line
        return quantise_blocks(x, block, dtype, power_of_two=self.config.block_scales == "power_of_two")

"""Rotary position embedding from one table, whose rows are the same for every batch."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from megarl.platform.invariant.elementary import cos_sin


@dataclass(frozen=True, eq=False)
class Rotary:
    """Angles of every position that a model may have.

    Attributes:
        frequencies: fp32 [h / 2], radians a token.
        context: positions.
    """

    frequencies: Tensor
    context: int

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor]:
        positions = torch.arange(self.context, device=self.frequencies.device, dtype=torch.float32)
        angles = (positions[:, None] * self.frequencies).double()
        return cos_sin(angles)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates the halves of each head against each other (Su et al., 2104.09864, eq. 34), in x's dtype.

        Args:
            x: [b, n, s, h].
            positions: int64, [b, s] or [s]; those of padding may lie beyond the context.
        """
        cos, sin = (part[positions.clamp(0, self.context - 1)] for part in self._table)
        if positions.dim() > 1:
            cos, sin = cos[:, None], sin[:, None]
        first, second = x.double().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

"""Delayed scaling: a tensor's scale comes from the largest values of past updates."""

import torch
from torch import Tensor

from megarl.platform.fp8.cast import amax, scale_of


class DelayedScale(torch.nn.Module):
    """The scale of one tensor of one layer, and the history that it comes from.

    Transformer Engine's DelayedScaling with two differences. Its history has an entry a micro-batch, this one an entry
    an optimizer step, so that the sizes of micro-batches change nothing. Its first scale is 1; here a tensor without a
    history, such as all of a frozen model's, is scaled by its own largest value.

    The buffers are no part of the model's state dict: they are a rank's own, see `state`.

    Attributes:
        history_H: fp32, largest values of the last updates, newest first; 0 where there was none.
        scale: fp32 scalar; 0 before the first update.
        pending: fp32 scalar, largest value since the last update.
    """

    history_H: Tensor
    scale: Tensor
    pending: Tensor

    def __init__(self, history: int, algorithm: str, dtype: torch.dtype) -> None:
        """Args: history: updates. algorithm: 'max' or 'most_recent' of them. dtype: the float8 dtype."""
        super().__init__()
        self.algorithm, self.dtype = algorithm, dtype
        for name, size in (("history_H", (history,)), ("scale", ()), ("pending", ())):
            self.register_buffer(name, torch.zeros(size), persistent=False)

    def __call__(self, x: Tensor, *, record: bool) -> Tensor:
        """The scale for x, fp32; with `record`, x's largest value counts in the next update's."""
        own = amax(x) if record or self.scale == 0 else None
        if own is not None and record:
            self.pending.copy_(torch.maximum(self.pending, own))
        return self.scale.clone() if own is None or self.scale != 0 else scale_of(own, self.dtype)

    def advance(self) -> None:
        """Ends an update: its largest value enters the history. One of 0 or infinity leaves the scale as it is."""
        self.history_H.copy_(torch.cat([self.pending[None], self.history_H[:-1]]))
        basis = self.history_H.amax() if self.algorithm == "max" else self.history_H[0]
        if basis > 0 and basis.isfinite():
            self.scale.copy_(scale_of(basis, self.dtype))
        self.pending.zero_()

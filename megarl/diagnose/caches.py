"""Keys and values that pass through a layer's attention: kept, and put in where a cache would have held them."""

from typing import Any

import torch
from torch import Tensor


class Recorder:
    """Stands where transformers puts a cache, and keeps each layer's keys and values [R, heads, S, size]."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """What transformers calls."""
        self.held[layer] = (keys, values)
        return keys, values


class Replacer:
    """Gives recorded keys and values at the places of a mask, and the new ones elsewhere."""

    def __init__(self, recorder: Recorder, places_RS: Tensor) -> None:
        self._recorder, self._places_R1S1 = recorder, places_RS[:, None, :, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """What transformers calls."""
        old_keys, old_values = self._recorder.held[layer]
        return (
            torch.where(self._places_R1S1, old_keys, keys),
            torch.where(self._places_R1S1, old_values, values),
        )

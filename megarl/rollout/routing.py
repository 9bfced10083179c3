"""Which experts an engine sent each token to."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

_ROUTER = re.compile(r".*\.layers\.(\d+)\.mlp\.gate")


@dataclass(frozen=True, eq=False)
class RoutedExperts:
    """The routing of a prompt and its response: T tokens read, L layers, K experts a token.

    The response's last token is not read, so T is one less than the tokens of both.

    Attributes:
        experts_TLK: int16 expert ids, in any order; -1 in layers without experts, and for tokens that an engine does
            not know of, such as those of a cached prefix.
        weights_TLK: fp32 gate weights of those experts; None where the engine gave none.
    """

    experts_TLK: Tensor
    weights_TLK: Tensor | None = None


class RoutingRecorder:
    """Listens to the routers of a transformers model: what they chose in its newest forward pass."""

    def __init__(self, model: Module, layers: int, experts_per_token: int) -> None:
        """Args: model: the network. layers: all of its layers. experts_per_token: of a layer with experts."""
        self._layers, self._experts_per_token = layers, experts_per_token
        self._newest: dict[int, tuple[Tensor, Tensor]] = {}
        self._handles = []
        for name, module in model.named_modules():
            if match := _ROUTER.fullmatch(name):
                self._handles.append(module.register_forward_hook(self._hook(int(match[1]))))

    def close(self) -> None:
        """Stops listening."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, layer: int) -> Any:
        def take(module: Module, inputs: Any, outputs: tuple[Tensor, Tensor, Tensor]) -> None:
            _, weights_NK, experts_NK = outputs
            self._newest[layer] = (experts_NK, weights_NK)

        return take

    def newest(self, rows: int) -> tuple[Tensor, Tensor]:
        """Ids int16 and weights fp32 of the newest pass, [rows, tokens, L, K] each."""
        like = next(iter(self._newest.values()))[0]
        shape = (self._layers, *like.shape)
        experts = torch.full(shape, -1, dtype=torch.int16, device=like.device)
        weights = torch.zeros(shape, dtype=torch.float32, device=like.device)
        for layer, (experts_NK, weights_NK) in self._newest.items():
            experts[layer], weights[layer] = experts_NK.to(torch.int16), weights_NK.float()
        ids_BTLK, weights_BTLK = (
            by_layer.transpose(0, 1).reshape(rows, -1, self._layers, self._experts_per_token)
            for by_layer in (experts, weights)
        )
        return ids_BTLK, weights_BTLK


class RoutingLog:
    """The routing of a batch of responses while it is decoded."""

    def __init__(self, recorder: RoutingRecorder, rows: int, width: int) -> None:
        """Args: recorder: listens to the model. rows: responses. width: prompt's columns and the response's."""
        self._recorder, self._rows, self._width = recorder, rows, width
        self._kept: tuple[Tensor, Tensor] | None = None

    def take(self, rows: Tensor, start: int) -> None:
        """Notes the newest pass, over tokens of these rows, from this column on."""
        newest = self._recorder.newest(len(rows))
        if self._kept is None:
            shape = (self._rows, self._width, *newest[0].shape[2:])
            self._kept = (newest[0].new_full(shape, -1), newest[1].new_zeros(shape))
        for kept, new in zip(self._kept, newest, strict=True):
            kept[rows, start : start + new.shape[1]] = new

    def of_row(self, row: int, begin: int, end: int) -> RoutedExperts:
        """What was noted of a row's columns [begin, end)."""
        assert self._kept is not None
        experts, weights = (kept[row, begin:end].cpu().clone() for kept in self._kept)
        return RoutedExperts(experts, weights)

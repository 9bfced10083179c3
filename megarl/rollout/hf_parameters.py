"""A transformers model's parameters under the names that weights are published and sent with."""

import re
from collections.abc import Iterator

from torch import Tensor
from torch.nn import Module

_FUSED = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)")


def published_parameters(model: Module) -> dict[str, Tensor]:
    """Name to tensor; writing to it writes to the model.

    A tied head is there once, as the embedding. transformers 5 holds a layer's experts in two parameters, gate over up
    and down, [experts, rows, columns] each; here they are the parts of each expert, as views.
    """
    return {name: part for own, held in model.named_parameters() for name, part in published_parts(own, held)}


def published_parts(own: str, held: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A parameter, or what belongs to one, such as its gradient, under its published names."""
    match = _FUSED.fullmatch(own)
    if match is None:
        yield own, held
        return
    for number, expert in enumerate(held.detach()):
        if match[2] == "down_proj":
            yield f"{match[1]}.{number}.down_proj.weight", expert
        else:
            gate, up = expert.chunk(2)
            yield f"{match[1]}.{number}.gate_proj.weight", gate
            yield f"{match[1]}.{number}.up_proj.weight", up

"""What a loader wrote into a model and what it passed over."""

import torch
from torch import nn

from megarl.sync.written import Written


def test_what_nothing_was_written_into_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, bias=False))
    written = Written()
    with written:
        model[0].weight.data[:2].copy_(torch.ones(2, 4))
    assert written.left_out(model) == ["0.bias", "1.weight"]
    with written:
        model[0].bias.data.fill_(0.0)
        model[1].weight.data.narrow(0, 0, 1).copy_(torch.ones(1, 3))
    assert written.left_out(model) == []


def test_what_is_only_read_is_not_written() -> None:
    model = nn.Linear(4, 3)
    written = Written()
    with written:
        model(torch.ones(1, 4))
        model.weight.detach().clone().copy_(torch.ones(3, 4))
    assert written.left_out(model) == ["bias", "weight"]


def test_a_tied_head_is_the_embedding() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    model["head"].weight = model["embedding"].weight
    written = Written()
    with written:
        model["embedding"].weight.data.copy_(torch.ones(5, 4))
    assert written.left_out(model) == []

"""Agreement of two routings, by hand."""

import torch

from megarl.drift.routing import RoutingAgreement, routing_agreement


def test_order_does_not_matter_and_unknown_tokens_do_not_count() -> None:
    own = torch.tensor([[0, 1], [2, 3], [0, 3], [1, 2]])
    engine = torch.tensor([[1, 0], [3, 1], [1, 2], [-1, -1]], dtype=torch.int16)
    found = routing_agreement(own, engine)
    assert (found.same.item(), found.overlap.item(), found.pairs.item()) == (1, 1.5, 3)
    assert found.metrics() == {"routing_agreement": 1 / 3, "routing_overlap": 0.5}


def test_parts_add_up() -> None:
    own, engine = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 1], [0, 1]])
    whole = routing_agreement(own, engine)
    parts = RoutingAgreement.nothing() + routing_agreement(own[:1], engine[:1]) + routing_agreement(own[1:], engine[1:])
    assert parts.metrics() == whole.metrics() == {"routing_agreement": 0.5, "routing_overlap": 0.5}


def test_nothing_to_compare_has_no_share() -> None:
    assert routing_agreement(torch.tensor([[0, 1]]), torch.tensor([[-1, -1]])).metrics() == {}

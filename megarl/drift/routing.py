"""How far engine and trainer send tokens to the same experts."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RoutingAgreement:
    """Sums over (token, layer) pairs, each a scalar tensor in fp64, so that parts add up.

    Attributes:
        same: pairs whose sets of experts are the same.
        overlap: sum of the shares of the experts that both chose.
        pairs: pairs that were compared.
    """

    same: Tensor
    overlap: Tensor
    pairs: Tensor

    @staticmethod
    def nothing(device: torch.device | None = None) -> "RoutingAgreement":
        """Sums over no pair."""
        return RoutingAgreement(*torch.zeros(3, dtype=torch.float64, device=device))

    def __add__(self, other: "RoutingAgreement") -> "RoutingAgreement":
        return RoutingAgreement(self.same + other.same, self.overlap + other.overlap, self.pairs + other.pairs)

    def metrics(self) -> dict[str, float]:
        """routing_agreement and routing_overlap, as shares of the pairs; nothing where there is none."""
        if self.pairs == 0:
            return {}
        shares = {"routing_agreement": self.same / self.pairs, "routing_overlap": self.overlap / self.pairs}
        return {name: float(share) for name, share in shares.items()}


def routing_agreement(own_NK: Tensor, engine_NK: Tensor) -> RoutingAgreement:
    """Compares two choices of K experts a token, in any order.

    Args:
        own_NK: the trainer's expert ids, whole numbers.
        engine_NK: the engine's; rows with an id below 0 are not compared.
    """
    compared_N = (engine_NK >= 0).all(dim=1)
    shared_N = (own_NK[:, :, None] == engine_NK[:, None, :]).any(dim=2).double().mean(dim=1)
    shared_N = torch.where(compared_N, shared_N, 0.0)
    return RoutingAgreement((shared_N == 1).double().sum(), shared_N.sum(), compared_N.double().sum())

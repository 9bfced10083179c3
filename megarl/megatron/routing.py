"""What the routers of this rank's layers are told of a micro-batch."""

from dataclasses import dataclass, replace

from torch import Tensor

REPLAYED = ("experts_NLK", "weights_NLK")


@dataclass(frozen=True)
class RoutingInput:
    """One micro-batch in the order that the routers see its tokens: N of them on this rank, K experts a token.

    Attributes:
        sequences_N: int64, the row of the micro-batch that each token is of; -1 for padding.
        rows: sequences of the micro-batch.
        aux_scale: what the sum of the sequences' load-balancing losses is multiplied by, the coefficient aside, so that
            Megatron-core's division by the trained tokens leaves the mean over the update batch's sequences.
        experts_NLK: int16, the engine's expert ids of each token and layer, -1 where it gave none; None without replay.
        weights_NLK: fp32, the engine's gate weights of those experts.
    """

    sequences_N: Tensor
    rows: int
    aux_scale: float = 0.0
    experts_NLK: Tensor | None = None
    weights_NLK: Tensor | None = None

    def of_layer(self, layer: int) -> "RoutingInput":
        """The same with one layer's ids and weights alone, [N, K]; layers count from 0."""
        pick = {name: value[:, layer] for name in REPLAYED if (value := getattr(self, name)) is not None}
        return replace(self, **pick)

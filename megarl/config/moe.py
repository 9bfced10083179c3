"""Recipe section for routed experts."""

from dataclasses import dataclass

from megarl.config.fields import key


@dataclass
class MoEConfig:
    """Mixture of experts in place of the feed-forward layer (see docs/moe.md)."""

    num_experts: int = key(0, "Routed experts of a layer; 0 for a dense model.", low=0)
    experts_per_token: int = key(2, "Experts that each token goes to.", low=1)
    ffn_hidden_size: int = key(64, "Width of each expert's SwiGLU layer.", low=1)
    norm_topk_prob: bool = key(True, "Whether a token's gate weights are scaled to a sum of 1.")
    dense_layers: list[int] = key(
        factory=list, doc="Layers, from 0, that stay dense, with the width model.ffn_hidden_size."
    )
    aux_loss_coefficient: float = key(0.0, "Weight of the load-balancing loss in training; 0 for none.", low=0)
    router_dtype: str = key("fp32", "Precision in which gate logits are formed.", choices=("fp32", "fp64"))

    def is_routed(self, layer: int) -> bool:
        """Whether a layer, from 0, has experts."""
        return self.num_experts > 0 and layer not in self.dense_layers

"""What the routers of all ranks have counted, as metrics."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from megatron.core.utils import get_model_config

from megarl.drift.routing import RoutingAgreement
from megarl.megatron.router import routers
from megarl.megatron.world import Layout


def reset_routers(stages: Sequence[torch.nn.Module]) -> None:
    """Starts the statistics of this rank's routers anew."""
    for router in routers(stages):
        router.reset()


def load_metrics(stages: Sequence[torch.nn.Module], layout: Layout, sequences: int) -> dict[str, float]:
    """Means over the layers with experts, since the last reset. Collective over all ranks.

    Args:
        stages: this rank's.
        layout: where it stands.
        sequences: that all ranks have trained on.

    Returns:
        moe/aux_loss: load-balancing loss a sequence, without its coefficient; moe/load_max and moe/load_min: tokens of
        the busiest and of the idlest expert, as multiples of the mean. Nothing for a dense model.
    """
    config = get_model_config(stages[0])
    experts = config.num_moe_experts
    if not experts:
        return {}
    own = routers(stages)
    rows = [torch.cat([router.loads_E, router.balance[None], router.loads_E.new_ones(1)]) for router in own]
    layers = torch.tensor([router.layer_number for router in own], dtype=torch.int64)
    found_LX = torch.zeros(config.num_layers, experts + 2, dtype=torch.float64, device=_device(stages))
    if rows:
        found_LX[layers - 1] = torch.stack(rows)
    # tokens are shared over data, context and, by sequence parallelism, tensor ranks; layers over pipeline ranks
    if layout.world_size > 1:
        dist.all_reduce(found_LX)
    routed_LX = found_LX[found_LX[:, -1] > 0]
    loads_LE, balance_L = routed_LX[:, :experts], routed_LX[:, experts]
    relative_LE = loads_LE / loads_LE.mean(dim=1, keepdim=True)
    return {
        "moe/aux_loss": float(balance_L.mean()) / sequences,
        "moe/load_max": float(relative_LE.amax(dim=1).mean()),
        "moe/load_min": float(relative_LE.amin(dim=1).mean()),
    }


def agreement_metrics(stages: Sequence[torch.nn.Module], layout: Layout) -> dict[str, float]:
    """routing_agreement and routing_overlap over all ranks and layers since the last reset. Collective."""
    sums = sum((router.agreement for router in routers(stages)), RoutingAgreement.nothing(_device(stages)))
    total_3 = torch.stack([sums.same, sums.overlap, sums.pairs])
    if layout.world_size > 1:
        dist.all_reduce(total_3)
    return RoutingAgreement(*total_3).metrics()


def _device(stages: Sequence[torch.nn.Module]) -> torch.device:
    return next(stages[0].parameters()).device

"""The routers of a mixture of experts, made to choose otherwise for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megarl.drift.diagnosis.computation import Computation


def routers(model: torch.nn.Module) -> list[Any]:
    """Those of the layers that have one, in order."""
    return [module for name, module in model.named_modules() if name.endswith(".mlp.gate")]


@contextmanager
def routed(model: torch.nn.Module, computation: Computation, replayed_MLK: Tensor | None, dtype: Any) -> Iterator[None]:
    """Switches on what a computation says of routing, while it lasts.

    Args:
        model: of transformers, whose routers return logits, weights and ids.
        computation: what is switched.
        replayed_MLK: experts of every place of the layout, -1 where the router's own hold; None for none.
        dtype: of the router, or None for the model's.
    """
    handles = []
    for layer, router in enumerate(routers(model)):
        given_MK = None if replayed_MLK is None else replayed_MLK[:, layer]

        def choose(module: Any, inputs: Any, output: Any, given_MK: Tensor | None = given_MK) -> Any:
            return _chosen(module, inputs[0], computation, given_MK, dtype, output)

        handles.append(router.register_forward_hook(choose))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _chosen(
    router: Any, hidden: Tensor, computation: Computation, given_MK: Tensor | None, dtype: Any, output: Any
) -> Any:
    hidden_MH = hidden.reshape(-1, hidden.shape[-1])
    own = dtype or hidden.dtype
    logits_ME = F.linear(hidden_MH.to(own), router.weight.to(own))
    probs_ME = logits_ME.softmax(dim=-1, dtype=torch.float64 if own == torch.float64 else torch.float32)
    weights_MK, ids_MK = probs_ME.topk(computation.experts_per_token or router.top_k, dim=-1)
    if given_MK is not None:
        ids_MK = torch.where(given_MK >= 0, given_MK, ids_MK)
        weights_MK = probs_ME.gather(1, ids_MK)
    renormalise = router.norm_topk_prob if computation.renormalise is None else computation.renormalise
    if renormalise:
        weights_MK = weights_MK / weights_MK.sum(dim=-1, keepdim=True)
    return (output[0], weights_MK.to(hidden.dtype), ids_MK)

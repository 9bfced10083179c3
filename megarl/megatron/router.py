"""The router of a layer with experts: Megatron-core's, which can be told a token's experts, and ignores padding."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.utils import unwrap_model
from torch import Tensor

from megarl.drift.routing import RoutingAgreement, routing_agreement
from megarl.megatron.load_balance import attach, balance_loss, load_of
from megarl.megatron.routing import RoutingInput


class _Choice:
    """Stands where Megatron-core's RouterReplay does, which has ids for all tokens or for none, of one model a process.

    Attributes:
        given_NK: expert ids, -1 in the rows whose experts the router chooses.
        own_NK: what the router would have chosen, after its pass.
        used_NK: what its tokens were sent to.
    """

    layer_number: int | None = None
    given_NK: Tensor | None = None
    own_NK: Tensor
    used_NK: Tensor

    def get_replay_topk(
        self, scores_NE: Tensor, topk: int, num_groups: Any, group_topk: Any, default: Callable[..., Any]
    ) -> tuple[Tensor, Tensor]:
        """The chosen experts' scores, with the gradient to them, and their ids."""
        scores_NK, self.own_NK = default(scores_NE, topk, num_groups=num_groups, group_topk=group_topk)
        self.used_NK = self.own_NK
        if self.given_NK is None:
            return scores_NK, self.own_NK
        self.used_NK = torch.where(self.given_NK >= 0, self.given_NK.to(self.own_NK.dtype), self.own_NK)
        return scores_NE.gather(1, self.used_NK), self.used_NK


class Router(TopKRouter):  # type: ignore[misc]  # Megatron-core has no types
    """Routes as Megatron-core does, by `input` where there is one.

    Attributes:
        replay: rl.routing_replay of the model.
        input: of the micro-batch that the stage runs next; None for all tokens alike and no statistics.
        loads_E: in training, how many tokens went to each expert since the last reset; fp64.
        balance: likewise the sum of the sequences' load-balancing losses, this rank's part.
        agreement: outside training, how far the engine's ids and the router's own agree.
    """

    def __init__(self, config: Any, pg_collection: Any = None, **options: Any) -> None:
        super().__init__(config=config, pg_collection=pg_collection, **options)
        self.replay = "none"
        self.input: RoutingInput | None = None
        self.router_replay = self._choice = _Choice()
        self._coefficient = config.moe_aux_loss_coeff
        self._awaiting_recompute: deque[RoutingInput | None] = deque()
        self.reset()

    def reset(self) -> None:
        """Starts the statistics anew, and forgets what a pass that failed left."""
        self.loads_E = torch.zeros(self.num_experts, dtype=torch.float64, device=self.weight.device)
        self.balance = torch.zeros((), dtype=torch.float64, device=self.weight.device)
        self.agreement = RoutingAgreement.nothing(self.weight.device)
        self._awaiting_recompute.clear()

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gates and choice, [N, E] each; see `TopKRouter.routing`."""
        given, is_recomputed = self._next_input()
        is_replayed = self.replay in ("experts", "weights")
        self._choice.given_NK = given.experts_NLK if is_replayed and given is not None else None
        gates_NE, choice_NE = super().routing(logits, padding_mask)
        if given is None:
            return gates_NE, choice_NE
        if self.replay == "weights" and self._choice.given_NK is not None:
            if given.weights_NLK is None:
                raise ValueError("the batch has the engine's expert ids and no gate weights to replay")
            gates_NE = self._with_values(gates_NE, given.weights_NLK)
        if self.training:
            return self._balanced(gates_NE, logits.flatten(0, -2), given, is_recomputed), choice_NE
        if given.experts_NLK is not None and self.replay != "none":
            # padding and tokens that no engine has read have no ids to agree with
            self.agreement += routing_agreement(self._choice.own_NK, given.experts_NLK)
        return gates_NE, choice_NE

    def _next_input(self) -> tuple[RoutingInput | None, bool]:
        """The micro-batch's, and whether the pass is one over again, for a backward pass that recomputes the layer.

        Recomputed micro-batches come in the order of their first passes, with others' first passes in between.
        """
        own = None if self.input is None else self.input.of_layer(self.layer_number - 1)
        if not self.training:
            return own, False
        if not torch.is_grad_enabled():
            self._awaiting_recompute.append(own)
            return own, False
        if self._awaiting_recompute:
            return self._awaiting_recompute.popleft(), True
        return own, False

    def _with_values(self, gates_NE: Tensor, weights_NK: Tensor) -> Tensor:
        """The gates with the engine's values on the tokens that have them, and the live router's gradient."""
        assert self._choice.given_NK is not None
        live_NK = gates_NE.gather(1, self._choice.used_NK)
        valued_NK = weights_NK.to(live_NK.dtype) + (live_NK - live_NK.detach())
        return gates_NE.scatter(1, self._choice.used_NK, torch.where(self._choice.given_NK >= 0, valued_NK, live_NK))

    def _balanced(self, gates_NE: Tensor, logits_NE: Tensor, given: RoutingInput, is_recomputed: bool) -> Tensor:
        """The gates with the load-balancing loss attached; what was chosen is counted once."""
        if self._coefficient == 0:
            logits_NE = logits_NE.detach()
        probs_NE = torch.softmax(logits_NE, dim=-1, dtype=torch.float32)
        loss = balance_loss(probs_NE, self._choice.own_NK, given.sequences_N, given.rows, self.tp_cp_group)
        if not is_recomputed:
            loads_RE = load_of(self._choice.used_NK, given.sequences_N, given.rows, self.num_experts)
            self.loads_E += loads_RE.sum(0)
            self.balance += loss.detach()
        if self._coefficient == 0:
            return gates_NE
        return attach(gates_NE, loss * (self._coefficient * given.aux_scale))


def with_own_router(block: Any) -> Any:
    """Megatron-core's block spec with `Router` in its layers with experts."""
    for layer in block.layer_specs:
        mlp = layer.submodules.mlp
        submodules = mlp.submodules if hasattr(mlp, "submodules") else mlp.keywords["submodules"]
        if hasattr(submodules, "router"):
            submodules.router = Router
    return block


def routers(stages: Sequence[torch.nn.Module]) -> list[Router]:
    """Those of this rank's stages, in the order of their layers."""
    return [module for stage in stages for module in unwrap_model(stage).modules() if isinstance(module, Router)]

"""transformers' network with experts as the slow reference: its gates, its choices, and choices forced on it."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from megarl.config.schema import Recipe
from megarl.megatron.batch import TrainBatch
from tests.unit.megatron.hf import hf_model
from tests.unit.megatron.tiny import noisy_weights, random_batch, tiny_recipe, with_random_routing

DENSE_LAYER = 1
ROWS = 4


def moe_recipe(**keys: Any) -> Recipe:
    """Three layers, the second of them dense."""
    moe = {"num_experts": 4, "ffn_hidden_size": 20, "dense_layers": [DENSE_LAYER], **keys.pop("moe", {})}
    return tiny_recipe(family="qwen3_moe", num_layers=3, moe=moe, **keys)


def replay_batch(recipe: Recipe) -> TrainBatch:
    """Ragged rows with an engine's experts that no router would choose."""
    return with_random_routing(random_batch(ROWS, seed=3), recipe.model).with_totals()


class Reference:
    """The network in fp64, whose routers remember their logits and choices, and can be told the choice.

    Attributes:
        network: the network.
        logits: gate logits of each layer's newest pass, [tokens, experts].
        chosen: expert ids of each layer's newest pass.
    """

    def __init__(self, recipe: Recipe, batch: TrainBatch, replay: str = "none") -> None:
        self.network: PreTrainedModel = hf_model(recipe.model, noisy_weights(recipe.model), torch.float64)
        # the grouped products are for fp32 and below
        self.network.set_experts_implementation("eager")
        self.logits: dict[int, Tensor] = {}
        self.chosen: dict[int, Tensor] = {}
        self._recipe, self._batch, self._replay = recipe, batch, replay
        for number, layer in enumerate(self.network.model.layers):
            if number != DENSE_LAYER:
                layer.mlp.gate.register_forward_hook(lambda _, inputs, outputs, n=number: self._gates(n, outputs))

    def _gates(self, number: int, outputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, _, own = outputs
        self.logits[number], self.chosen[number] = logits, own
        given = None if self._batch.routed_experts_BTLK is None else self._batch.routed_experts_BTLK
        if self._replay == "none" or given is None or self._batch.routed_weights_BTLK is None:
            return outputs
        ids = given[:, :, number].flatten(0, 1).long()
        used = torch.where(ids >= 0, ids, own)
        gates = logits.softmax(-1).gather(1, used)
        gates = gates / gates.sum(-1, keepdim=True)
        if self._replay == "weights":
            weights = self._batch.routed_weights_BTLK[:, :, number].flatten(0, 1).double()
            gates = torch.where(ids >= 0, weights + gates - gates.detach(), gates)
        return logits, gates, used

    def balance(self) -> Tensor:
        """Sum over the routed layers of the mean over rows of E sum_i f_i P_i, token by token from the formula."""
        width = self._batch.tokens_BT.shape[1]
        total = torch.zeros((), dtype=torch.float64)
        for number, logits in self.logits.items():
            probs_BTE = logits.softmax(-1).view(ROWS, width, -1)
            chosen_BTK = self.chosen[number].view(ROWS, width, -1)
            experts = probs_BTE.shape[-1]
            for row, length in enumerate(self._batch.lengths_B.tolist()):
                chosen = chosen_BTK[row, :length]
                for expert in range(experts):
                    share = (chosen == expert).sum() / chosen.numel()
                    total = total + experts * share * probs_BTE[row, :length, expert].mean() / ROWS
        return total

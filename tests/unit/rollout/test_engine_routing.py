"""The embedded engine's routing against one pass of transformers over each whole response."""

import pytest
import torch

from megarl.config.errors import UserError
from megarl.config.model import ModelConfig
from megarl.loop.routing import with_routing
from megarl.megatron.batch import pad_batch
from megarl.megatron.models import FAMILIES
from megarl.megatron.policy import Policy
from megarl.megatron.world import Layout, join_world, leave_world
from megarl.rollout import Completion, Request, SamplingParams
from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.routing import RoutedExperts
from tests.unit.megatron.hf import hf_model, tensor_names
from tests.unit.megatron.moe import DENSE_LAYER, moe_recipe
from tests.unit.megatron.tiny import VOCAB, noisy_weights

SAMPLING = SamplingParams(temperature=3.0, max_new_tokens=10, stop_token_id=6, with_routing=True)
REQUESTS = [Request(f"p{row}", 0, tuple(range(1, 2 + row % 5)), "rl/0") for row in range(9)]


def engine_of(model: ModelConfig) -> EmbeddedEngine:
    config = FAMILIES[model.family].hf_config(model, VOCAB)
    engine = EmbeddedEngine(config, seed=3, max_batch_size=5, device=torch.device("cpu"))
    read = noisy_weights(model)
    engine.load_weights(((name, read(name)) for name in tensor_names(model)), version=1)
    return engine


@pytest.fixture(scope="module")
def completions() -> list[Completion]:
    return engine_of(moe_recipe().model).generate(REQUESTS, SAMPLING)


def test_ids_and_weights_are_those_of_a_pass_over_the_whole_response(completions: list[Completion]) -> None:
    model = moe_recipe().model
    network = hf_model(model, noisy_weights(model), torch.float32)
    seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for number, layer in enumerate(network.model.layers):
        if number != DENSE_LAYER:
            layer.mlp.gate.register_forward_hook(
                lambda _, inputs, outputs, n=number: seen.__setitem__(n, (outputs[2], outputs[1]))
            )
    assert len({len(completion.token_ids) for completion in completions}) > 2, "rows must end at different steps"
    for completion in completions:
        ids = [*completion.request.prompt_ids, *completion.token_ids][:-1]
        with torch.no_grad():
            network(torch.tensor([ids]))
        routing = completion.routing
        assert routing is not None and routing.weights_TLK is not None
        assert routing.experts_TLK.shape == (len(ids), model.num_layers, model.moe.experts_per_token)
        assert (routing.experts_TLK[:, DENSE_LAYER] == -1).all()
        for number, (experts, weights) in seen.items():
            assert routing.experts_TLK[:, number].tolist() == experts.tolist()
            torch.testing.assert_close(routing.weights_TLK[:, number], weights, rtol=0.0, atol=1e-5)


def test_asking_for_it_changes_no_token(completions: list[Completion]) -> None:
    plain = SamplingParams(SAMPLING.temperature, SAMPLING.max_new_tokens, SAMPLING.stop_token_id)
    engine = engine_of(moe_recipe().model)
    without = engine.generate(REQUESTS, plain)
    assert without == completions and all(completion.routing is None for completion in without)


def test_a_dense_model_has_none_to_give() -> None:
    recipe = moe_recipe()
    recipe.model.family = "qwen3"
    with pytest.raises(ValueError, match="the model has no routed experts"):
        engine_of(recipe.model).generate(REQUESTS, SAMPLING)


@pytest.fixture
def layout() -> Layout:
    yield join_world(moe_recipe().parallel, seed=1)
    leave_world()


def test_the_trainer_agrees_with_the_engine(layout: Layout, completions: list[Completion]) -> None:
    """Both are fp32, and no token's second and third gate lie within their rounding."""
    recipe = moe_recipe(routing_replay="measure")
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    responses = [completion.token_ids for completion in completions]
    batch = pad_batch([completion.request.prompt_ids for completion in completions], responses, torch.device("cpu"))
    batch = with_routing(batch, [completion.routing for completion in completions])
    _, metrics = policy.log_probs_and_agreement(batch, 3)
    assert metrics == {"routing_agreement": 1.0, "routing_overlap": 1.0}


def test_routing_that_does_not_fit_the_batch_is_refused() -> None:
    batch = pad_batch([[1, 2], [3]], [[4, 5], [6, 7, 8]], torch.device("cpu"))
    ids = [RoutedExperts(torch.zeros(tokens, 2, 2, dtype=torch.int16)) for tokens in (3, 3)]
    laid_out = with_routing(batch, [ids[0], None])
    assert laid_out.routed_experts_BTLK is not None and laid_out.routed_weights_BTLK is None
    assert (laid_out.routed_experts_BTLK[0] == 0).all() and (laid_out.routed_experts_BTLK[1] == -1).all()
    with pytest.raises(ValueError, match="response 1 has 3 tokens to read, not 2"):
        with_routing(batch, [ids[0], RoutedExperts(torch.zeros(2, 2, 2, dtype=torch.int16))])
    with pytest.raises(UserError, match=r"rl\.routing_replay=experts needs expert ids, and the engine gave none"):
        with_routing(batch, [None, None])
    with pytest.raises(UserError, match=r"rl\.routing_replay=weights needs gate weights"):
        with_routing(batch, [ids[0], None], "weights")

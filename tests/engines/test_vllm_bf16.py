"""A vLLM in bf16 with a head of its own: beside a trainer in bf16, and beside one that ties its head."""

from dataclasses import replace

import pytest
import torch

from megarl.config.schema import Recipe
from megarl.megatron.world import Layout
from megarl.rollout.engine import WeightsError
from megarl.rollout.fleet import Fleet
from megarl.sync.probe import tolerance
from megarl.sync.push import ServedSync
from tests.engines.served import SAMPLING, by_trainer, policy_of, reload, requests

pytestmark = pytest.mark.vllm


def test_a_head_that_the_trainer_forgets(untied: Recipe, untied_fleet: Fleet, layout: Layout) -> None:
    tied = replace(untied, model=replace(untied.model, tie_embeddings=True))
    sync = ServedSync(tied, policy_of(tied, layout, seed=50), untied_fleet)
    with pytest.raises(WeightsError, match=r"^the engine's lm_head got no weights, .* a head .* was not sent"):
        sync.push(0)
    sync.close()


def test_log_probs_follow_the_weights(untied: Recipe, untied_fleet: Fleet, layout: Layout) -> None:
    """Their mean distance is what bf16 explains, and that to other weights is not."""
    policy = policy_of(untied, layout, seed=51)
    sync = ServedSync(untied, policy, untied_fleet)
    for version in (1, 2):
        sync.push(version)
        completions = untied_fleet.generate(requests(16), SAMPLING)
        assert {span.version for done in completions for span in done.versions} == {version}
        given = torch.cat([torch.tensor(done.log_probs) for done in completions])
        apart = (torch.cat(by_trainer(policy, completions)) - given).abs().mean()
        assert apart < tolerance(untied)
        reload(policy, seed=51 + version)
        assert (torch.cat(by_trainer(policy, completions)) - given).abs().mean() > tolerance(untied)
    sync.close()

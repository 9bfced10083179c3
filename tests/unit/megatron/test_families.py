"""Each family's own: what its attention has, and the scaling of its rotary frequencies."""

from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megarl.config.names import KNOWN_FAMILIES
from megarl.megatron.models import FAMILIES
from megarl.megatron.models.llama import hf_config
from megarl.megatron.rope import llama3_frequencies
from tests.unit.megatron.hf import tensor_names
from tests.unit.megatron.tiny import VOCAB, tiny_recipe

LLAMA_3_1 = {"rope_theta": 5e5, "rope_scaling": "llama3", "head_dim": 128}
LLAMA_3_2 = {**LLAMA_3_1, "rope_scaling_factor": 32.0, "head_dim": 64}


def test_the_recipe_knows_every_family() -> None:
    assert tuple(sorted(FAMILIES)) == KNOWN_FAMILIES
    assert {
        family.hf_config(tiny_recipe(family=name).model, VOCAB).model_type for name, family in FAMILIES.items()
    } == {*KNOWN_FAMILIES}


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("llama", set()),
        ("qwen2", {"q_proj.bias", "k_proj.bias", "v_proj.bias"}),
        ("qwen3", {"q_norm.weight", "k_norm.weight"}),
    ],
)
def test_what_a_familys_attention_has(family: str, own: set[str]) -> None:
    names = tensor_names(tiny_recipe(family=family).model)
    found = {name.partition("layers.1.self_attn.")[2] for name in names} - {""}
    assert found == own | {f"{part}_proj.weight" for part in "qkvo"}


@pytest.mark.parametrize("name", ["self_attention.linear_qkv.bias", "self_attention.q_layernorm.weight", "mlp.router"])
def test_a_parameter_of_another_family_is_a_bug(name: str) -> None:
    model = tiny_recipe(family="llama").model
    with pytest.raises(KeyError, match=f"llama has no parameter decoder.layers.0.{name}"):
        FAMILIES["llama"].mapping(f"decoder.layers.0.{name}", model)


@pytest.mark.parametrize("keys", [LLAMA_3_1, LLAMA_3_2], ids=["3.1", "3.2"])
def test_scaled_frequencies_are_those_of_transformers(keys: dict[str, Any]) -> None:
    model = tiny_recipe(family="llama", **keys).model
    theirs, factor = ROPE_INIT_FUNCTIONS["llama3"](hf_config(model, VOCAB), torch.device("cpu"))
    plain = 1 / model.rope_theta ** (torch.arange(0, model.head_dim, 2) / model.head_dim)
    ours = llama3_frequencies(plain, model)
    assert factor == 1
    # a few roundings in fp32
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0.0)
    slowed = plain / ours
    assert slowed[0] == 1 and slowed[-1] == model.rope_scaling_factor
    assert ((slowed > 1.01) & (slowed < 0.99 * model.rope_scaling_factor)).any(), "none is in between"

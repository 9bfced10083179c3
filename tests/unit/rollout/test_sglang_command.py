"""The command line of an SGLang server."""

from pathlib import Path

import pytest

from megarl.config.errors import RecipeError
from megarl.rollout.guard import TOKEN
from megarl.rollout.sglang.command import cached_tokens, check_head, server_command, server_environment
from tests.unit.megatron.tiny import tiny_recipe


def test_the_token_is_in_the_environment_alone() -> None:
    recipe = tiny_recipe(head_dim=6)
    inherited = {"RANK": "0", "PATH": "/bin", "VLLM_API_KEY": "another", "SGLANG_GRPC_PORT": "50051"}
    environment = server_environment(inherited, "a secret")
    assert environment[TOKEN] == "a secret"
    assert not environment.keys() & (inherited.keys() - {"PATH"})
    assert "a secret" not in " ".join(server_command(recipe, Path("/model"), 1234))


def test_it_listens_on_the_loopback_interface() -> None:
    command = server_command(tiny_recipe(head_dim=6), Path("/model"), 1234)
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_the_cache_holds_as_many_tokens_as_fit_and_one_context_at_least() -> None:
    recipe = tiny_recipe(head_dim=6)
    # 2 layers, keys and values, 2 heads of 6, 4 bytes each
    assert cached_tokens(recipe, 2**-10) == 2**20 // 192
    assert cached_tokens(recipe, 2**-20) == recipe.model.max_position_embeddings
    recipe.engine.dtype = "bf16"
    assert cached_tokens(recipe, 2**-10) == 2**20 // 96


def test_a_head_that_sglang_would_get_wrong_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"model\.head_dim=8 is not model\.hidden_size"):
        check_head(tiny_recipe(head_dim=8))
    check_head(tiny_recipe(head_dim=8, family="qwen3"))

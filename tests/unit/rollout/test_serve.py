"""A server for other machines is refused without what keeps strangers out."""

from pathlib import Path

import pytest

from megarl.config.errors import UserError
from megarl.rollout.serve import serve
from tests.unit.megatron.tiny import tiny_recipe


def test_one_on_all_interfaces_is_asked_for_by_name_and_has_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe()
    recipe.rollout.engine = "vllm"
    monkeypatch.setenv(recipe.engine.token_variable, "secret")
    with pytest.raises(UserError, match=r"engine\.allow_remote=false keeps servers on this machine"):
        serve(recipe, tmp_path / "announced")
    recipe.engine.allow_remote = True
    monkeypatch.delenv(recipe.engine.token_variable)
    with pytest.raises(UserError, match="MEGARL_ENGINE_TOKEN is missing"):
        serve(recipe, tmp_path / "announced")
    assert not (tmp_path / "announced").exists()

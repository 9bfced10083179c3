"""What this machine, and ones that it is not, are told about FP8 and the residual stream."""

import pytest
import torch

from megarl.config.errors import RecipeError
from megarl.config.precision import FP8Config, PrecisionConfig
from megarl.platform import precision_support
from megarl.platform.platform import Platform
from megarl.platform.precision_support import check_precision

RECIPES = ["tensorwise", "delayed", "blockwise", "mxfp8"]
EMULATE = "set precision.fp8.emulation=true to round to FP8 without it"


def fp8(recipe: str, **keys: object) -> PrecisionConfig:
    return PrecisionConfig(dtype="bf16", fp8=FP8Config(recipe=recipe, **keys))  # type: ignore[arg-type]


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], *, engine: bool = True) -> None:
    """Pretends a GPU: there is none where these tests must run."""
    platform = Platform("cuda", torch.device("cpu"), "nccl")
    monkeypatch.setattr(precision_support, "current", lambda: platform)
    monkeypatch.setattr(precision_support, "has_transformer_engine", lambda: engine)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_cpu_has_no_fp8_and_emulates_it(recipe: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_precision(fp8(recipe))
    message = f"precision.fp8.recipe={recipe} needs a GPU, and this process sees none; {EMULATE}."
    assert str(caught.value) == message
    check_precision(fp8(recipe, emulation=True))
    check_precision(PrecisionConfig(dtype="bf16", fp32_residual=True))


@pytest.mark.parametrize(("recipe", "least"), zip(RECIPES, [(8, 9), (8, 9), (9, 0), (10, 0)], strict=True))
def test_pretended_gpus(recipe: str, least: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, least)
    check_precision(fp8(recipe))
    pretend_gpu(monkeypatch, (8, 6))
    with pytest.raises(RecipeError, match=f"needs compute capability {least[0]}.{least[1]}, and this GPU has 8.6"):
        check_precision(fp8(recipe))
    pretend_gpu(monkeypatch, least, engine=False)
    with pytest.raises(RecipeError, match="needs Transformer Engine, which is not installed; install megarl's extra"):
        check_precision(fp8(recipe))


def test_scales_that_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, (9, 0))
    with pytest.raises(RecipeError, match="set NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1"):
        check_precision(fp8("blockwise", block_scales="fp32"))
    monkeypatch.setenv("NVTE_FP8_BLOCK_SCALING_FP32_SCALES", "1")
    check_precision(fp8("blockwise", block_scales="fp32"))
    with pytest.raises(RecipeError, match="set NVTE_FP8_BLOCK_SCALING_FP32_SCALES=0"):
        check_precision(fp8("blockwise"))


def test_transformer_engine_takes_no_fp32_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, (9, 0))
    with pytest.raises(RecipeError, match="fp32_residual=true is not taken by Transformer Engine's layers"):
        check_precision(PrecisionConfig(dtype="bf16", fp32_residual=True))


def test_batch_invariant_arithmetic_is_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    check_precision(PrecisionConfig(batch_invariant=True))
    pretend_gpu(monkeypatch, (9, 0))
    with pytest.raises(RecipeError) as caught:
        check_precision(PrecisionConfig(batch_invariant=True))
    assert str(caught.value) == (
        "precision.batch_invariant=true is for CPUs, and this process sees a GPU; set it to false."
    )

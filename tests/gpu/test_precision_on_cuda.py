"""16-bit and real FP8 training on a GPU, FP8 beside its emulation."""

from dataclasses import replace

import pytest
from torch import Tensor

from megarl.config.errors import RecipeError
from megarl.config.precision import FP8Config, PrecisionConfig
from megarl.megatron.policy import Policy
from megarl.megatron.weights import random_weights
from megarl.megatron.world import Layout
from megarl.objectives import SFT
from megarl.platform.platform import current
from megarl.platform.precision_support import check_precision
from tests.unit.megatron.test_precision import BF16_UNIT, policy_in
from tests.unit.megatron.tiny import VOCAB, random_batch

ROWS, ALIGNMENT = 8, 32
# whole blocks of 128 in every dimension that is summed over: 8 rows of 32 tokens, and these
SHAPE = {"hidden_size": 256, "ffn_hidden_size": 512, "head_dim": 64, "embedding_init_std": 0.05}
# both operands of a product are E4M3's, with 3 bits after the point: each is off by 2^-4 of itself at most
E4M3_PRODUCT = 2 * 2**-4


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_model_in_16_bits_learns(layout: Layout, dtype: str) -> None:
    policy, batch = policy_in(layout, PrecisionConfig(dtype=dtype)), random_batch(ROWS, device=current().device)
    wide = policy_in(layout, PrecisionConfig()).log_probs(batch, ROWS)
    # as the test without a GPU has it: some ten roundings in a row of logits below 16
    assert (policy.log_probs(batch, ROWS) - wide)[batch.mask_BT].abs().max() < 10 * 16 * BF16_UNIT
    losses = [policy.update(batch, SFT(), micro_batch_size=4).loss for _ in range(10)]
    assert losses[-1] < losses[0]


@pytest.fixture(params=["tensorwise", "delayed", "blockwise", "mxfp8"])
def fp8(request: pytest.FixtureRequest) -> PrecisionConfig:
    """A recipe that this machine has."""
    precision = PrecisionConfig(dtype="bf16", fp8=FP8Config(recipe=request.param))
    try:
        check_precision(precision)
    except RecipeError as error:
        pytest.skip(str(error))
    return precision


def policies(layout: Layout, fp8: PrecisionConfig) -> list[Policy]:
    """In FP8, in its emulation, and in bf16 without either, from the same weights."""
    emulated = replace(fp8, fp8=replace(fp8.fp8, emulation=True))
    aligned = replace(layout, token_multiple=ALIGNMENT)
    built = [policy_in(aligned, precision, **SHAPE) for precision in (fp8, emulated, PrecisionConfig(dtype="bf16"))]
    for policy in built:
        # small weights, so that a rounding is not blown up from layer to layer
        policy.load(random_weights(policy.recipe.model, VOCAB, 7))
    return built


def rms(difference_N: Tensor) -> float:
    return float(difference_N.square().mean().sqrt())


def test_fp8s_log_probs_are_those_of_its_emulation(layout: Layout, fp8: PrecisionConfig) -> None:
    """Two roundings that had nothing to do with each other would lie sqrt(2) times a rounding apart."""
    batch = random_batch(ROWS, device=current().device)
    real, emulated, plain = (policy.log_probs(batch, ROWS)[batch.mask_BT] for policy in policies(layout, fp8))
    rounding = rms(emulated - plain)
    assert rms(real - plain) > rounding / 2
    assert rms(real - emulated) < 2**0.5 * rounding


def test_an_update_in_fp8_is_its_emulations(layout: Layout, fp8: PrecisionConfig) -> None:
    batch = random_batch(ROWS, device=current().device)
    real, emulated, _ = (policy.update(batch, SFT(), micro_batch_size=ROWS) for policy in policies(layout, fp8))
    assert real.loss == pytest.approx(emulated.loss, rel=E4M3_PRODUCT)
    assert real.grad_norm == pytest.approx(emulated.grad_norm, rel=E4M3_PRODUCT)

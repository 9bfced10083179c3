"""16-bit training: fp32 weights in the optimizer, loss scaling, the head and the residual stream in fp32."""

import math
from dataclasses import replace

import pytest
import torch

from megarl.config.model import ParallelConfig
from megarl.config.precision import FP8Config, LossScaleConfig, PrecisionConfig
from megarl.config.training import OptimizerConfig
from megarl.megatron.critic import Critic
from megarl.megatron.micro_batches import TokenBudget
from megarl.megatron.model import transformer_config
from megarl.megatron.policy import Policy
from megarl.megatron.precision import gradient_buffer_options, optimizer_options, token_alignment
from megarl.megatron.world import Layout
from megarl.objectives import GRPO, SFT, KLPenalty
from tests.unit.megatron.tiny import VOCAB, noisy_weights, random_batch, rl_batch, tiny_recipe

# isort: split
# after megarl.megatron, which prepares torch for it
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.fp8_utils import get_fp8_align_size
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig

ROWS = 4
CONFIG = OptimizerConfig(lr=1e-2, clip_grad=0.0, min_lr_ratio=1.0)
# 8 bits of significand, of which the last is rounded
BF16_UNIT = 2.0**-8


def policy_in(layout: Layout, precision: PrecisionConfig, config: OptimizerConfig = CONFIG, **keys: int) -> Policy:
    recipe = tiny_recipe(precision=precision, **keys)
    policy = Policy(recipe, layout, VOCAB)
    policy.load(noisy_weights(recipe.model))
    policy.start_phase(config, 100)
    return policy


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([tensor.float().flatten() for _, tensor in policy.export()])


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_weights_and_exports_are_in_the_dtype(layout: Layout, dtype: str) -> None:
    policy = policy_in(layout, PrecisionConfig(dtype=dtype))
    wanted = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert {parameter.dtype for parameter in policy.models[0].parameters()} == {wanted}
    assert {tensor.dtype for _, tensor in policy.export()} == {wanted}
    assert {main.dtype for group in policy.optimizer.param_groups for main in group["params"]} == {torch.float32}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_log_probs_are_fp32s_up_to_the_units(layout: Layout, dtype: str) -> None:
    """A model of two layers rounds some ten times in a row; logits are below 16."""
    batch = random_batch(ROWS)
    wide, narrow = (policy_in(layout, PrecisionConfig(dtype=d)).log_probs(batch, 2) for d in ("fp32", dtype))
    assert narrow.dtype == torch.float32
    difference = (wide - narrow)[batch.mask_BT].abs()
    assert 0 < difference.max() < 10 * 16 * BF16_UNIT


@pytest.mark.parametrize("distributed", [False, True])
def test_steps_below_the_weights_last_bit_add_up(layout: Layout, distributed: bool) -> None:
    """Adam's first steps are the rate; at a thousandth of a bf16 unit alone each would round away."""
    config = OptimizerConfig(lr=2e-5, clip_grad=0.0, min_lr_ratio=1.0)
    policy = policy_in(layout, PrecisionConfig(dtype="bf16"), config, distributed_optimizer=distributed)
    before = weights(policy)
    batch = random_batch(ROWS)
    for _ in range(40):
        policy.update(batch, SFT(), micro_batch_size=4)
    after = weights(policy)
    # weights of about 1 have a unit of 2^-8 = 4e-3, and moved 40 * 2e-5 = 8e-4; those below .1 have one below 4e-4
    moved = before != after
    assert moved[before.abs() < 0.05].float().mean() > 0.5
    assert not moved[before.abs() > 1.0].float().mean() > 0.5


def test_fp16_skips_an_overflow_and_lowers_the_scale(layout: Layout) -> None:
    scale = LossScaleConfig(initial=2.0**40, hysteresis=2)
    policy = policy_in(layout, PrecisionConfig(dtype="fp16", loss_scale=scale))
    before, batch = weights(policy), random_batch(ROWS)
    updates = [policy.update(batch, SFT(), micro_batch_size=2) for _ in range(3)]
    assert [update.loss_scale for update in updates] == [2.0**40, 2.0**40, 2.0**39]
    assert all(update.skipped and math.isnan(update.grad_norm) and math.isfinite(update.loss) for update in updates)
    assert torch.equal(before, weights(policy))
    assert not policy.has_stepped


def test_fp16_at_its_least_scale_is_nonfinite(layout: Layout) -> None:
    scale = LossScaleConfig(initial=2.0**40, least=2.0**40)
    policy = policy_in(layout, PrecisionConfig(dtype="fp16", loss_scale=scale))
    before = weights(policy)
    update = policy.update(random_batch(ROWS), SFT(), micro_batch_size=2)
    assert update.nonfinite and update.skipped and update.metrics == {}
    assert torch.equal(before, weights(policy))


class Broken(SFT):
    """A loss whose value or whose gradient alone is not finite."""

    def __init__(self, which: str) -> None:
        self.which = which

    def __call__(self, batch):  # type: ignore[no-untyped-def]
        output = super().__call__(batch)
        loss_BT = output.loss_BT
        if self.which == "loss":
            loss_BT = loss_BT + math.nan
        elif self.which == "gradient":
            # the square root's slope at 0 is infinite
            loss_BT = loss_BT + (loss_BT - loss_BT.detach()).abs().sqrt()
        return type(output)(loss_BT, output.metrics)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("which", ["loss", "gradient"])
def test_what_is_not_finite_moves_nothing(layout: Layout, dtype: str, which: str) -> None:
    """Neither weights nor moments, so that the updates that follow are those of a policy that never met it."""
    policy, plain = (policy_in(layout, PrecisionConfig(dtype=dtype)) for _ in range(2))
    for each in (policy, plain):
        each.update(random_batch(ROWS), SFT(), micro_batch_size=2)
    before = weights(policy)
    update = policy.update(random_batch(ROWS), Broken(which), micro_batch_size=2)
    assert update.nonfinite and update.skipped and update.metrics == {} and math.isnan(update.grad_norm)
    assert torch.equal(before, weights(policy))
    plain.scheduler.step(increment=1)
    after = [each.update(random_batch(ROWS, seed=9), SFT(), micro_batch_size=2) for each in (policy, plain)]
    assert after[0] == after[1] and not after[0].nonfinite
    assert torch.equal(weights(policy), weights(plain))


@pytest.mark.parametrize("fp32_head", [False, True])
def test_the_loss_scale_saves_small_gradients_from_fp16s_underflow(layout: Layout, fp32_head: bool) -> None:
    """A loss a millionth the size: its hidden states' gradients are below fp16's 6e-8, unless they are scaled first."""
    batch = random_batch(ROWS)

    class Small(SFT):
        def __call__(self, batch):  # type: ignore[no-untyped-def]
            output = super().__call__(batch)
            return type(output)(output.loss_BT * 2.0**-24, output.metrics)

    wide, narrow = (
        policy_in(layout, PrecisionConfig(dtype=dtype, fp32_head=fp32_head)).update(batch, Small(), micro_batch_size=4)
        for dtype in ("fp32", "fp16")
    )
    assert narrow.grad_norm == pytest.approx(wide.grad_norm, rel=0.01)


def test_fp32_head(layout: Layout) -> None:
    """The log-probs are those of an fp32 product of the very same hidden states and weight."""
    batch = random_batch(ROWS)
    rounded = policy_in(layout, PrecisionConfig(dtype="bf16")).log_probs(batch, 4)
    policy = policy_in(layout, PrecisionConfig(dtype="bf16", fp32_head=True))
    with torch.no_grad():
        model = policy.models[0].eval()
        hidden = model(batch.tokens_BT, torch.arange(batch.tokens_BT.shape[1])[None].expand(ROWS, -1), None)
        logits = hidden.float() @ model.shared_embedding_or_output_weight().float().t()
    assert hidden.dtype == torch.bfloat16
    wanted = logits.log_softmax(-1).gather(-1, batch.targets_BT[..., None])[..., 0]
    got = policy.log_probs(batch, 4)
    torch.testing.assert_close(got[batch.mask_BT], wanted[batch.mask_BT])
    assert not torch.allclose(rounded[batch.mask_BT], wanted[batch.mask_BT])
    policy.update(batch, SFT(), micro_batch_size=4)


def test_fp32_residual(layout: Layout) -> None:
    """The layers hand fp32 on, the linear layers get bf16, and it is nearer to fp32 than without."""
    batch = random_batch(16)
    exact = policy_in(layout, PrecisionConfig()).log_probs(batch, 16)
    errors, dtypes = [], []
    for fp32_residual in (False, True):
        policy = policy_in(layout, PrecisionConfig(dtype="bf16", fp32_residual=fp32_residual))
        layer = policy.models[0].decoder.layers[0]
        layer.register_forward_hook(lambda _, __, output: dtypes.append(output[0].dtype))
        errors.append((policy.log_probs(batch, 16) - exact)[batch.mask_BT].abs().mean().item())
        policy.update(batch, SFT(), micro_batch_size=16)
    assert dtypes[0] == torch.bfloat16 and dtypes[-1] == torch.float32
    assert errors[1] < errors[0]


@pytest.mark.parametrize("precision", [PrecisionConfig(dtype="bf16"), PrecisionConfig(dtype="bf16", fp32_head=True)])
def test_exact_kl_in_16_bits(layout: Layout, precision: PrecisionConfig) -> None:
    policy, reference = (policy_in(layout, precision) for _ in range(2))
    batch = rl_batch(ROWS, policy.log_probs(random_batch(ROWS), 2))
    policy.update(batch, KLPenalty(GRPO(), 0.1, "full"), micro_batch_size=2, reference=reference)
    assert policy.reference_kl(batch, reference, 2)[batch.mask_BT].min() >= 0


def test_the_critic_trains_in_bf16_with_its_head_in_fp32(layout: Layout) -> None:
    recipe = tiny_recipe(precision=PrecisionConfig(dtype="bf16"))
    critic = Critic(recipe, layout, VOCAB)
    critic.start_phase(CONFIG, 10)
    critic.load(noisy_weights(recipe.model))
    batch = random_batch(ROWS)
    ones = torch.ones_like(batch.mask_BT, dtype=torch.float32)
    batch = replace(batch, old_values_BT=critic.values(batch, 2), returns_BT=ones)
    losses = [critic.update(batch, micro_batch_size=2, clip=10.0).loss for _ in range(5)]
    assert losses[-1] < losses[0]
    assert critic.models[0].output_layer.weight.dtype == torch.float32


def test_weights_loaded_after_the_optimizer_reach_it(layout: Layout) -> None:
    """As the critic's are: the next step would otherwise bring the first ones back."""
    policy = policy_in(layout, PrecisionConfig(dtype="bf16"), OptimizerConfig(lr=1e-6))
    policy.load(noisy_weights(policy.recipe.model, seed=5))
    before = weights(policy)
    policy.update(random_batch(ROWS), SFT(), micro_batch_size=2)
    torch.testing.assert_close(weights(policy), before, rtol=2 * BF16_UNIT, atol=1e-5)


FP8_SHAPE = {"hidden_size": 32, "ffn_hidden_size": 64}


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", "blockwise", "mxfp8"])
def test_emulated_fp8_packed_is_padded(layout: Layout, recipe: str) -> None:
    """Sequences are padded to whole blocks, so a token's log-prob hangs on no neighbour's but through tensor scales."""
    precision = PrecisionConfig(fp8=FP8Config(recipe=recipe, emulation=True))
    batch = random_batch(ROWS)
    aligned = Layout(**{**vars(layout), "token_multiple": precision.fp8.alignment})
    policy = policy_in(aligned, precision, **FP8_SHAPE)
    exact = policy_in(layout, PrecisionConfig(), **FP8_SHAPE).log_probs(batch, ROWS)
    padded, packed = policy.log_probs(batch, ROWS), policy.log_probs(batch, TokenBudget(ROWS * 32))
    by_block = recipe in ("blockwise", "mxfp8")
    mask = batch.mask_BT
    # a value next to a rounding boundary may fall on its other side after sums in another order
    assert ((padded - packed)[mask].abs() < 1e-4).float().mean() > (0.9 if by_block else 0.0)
    assert 1e-3 < (padded - exact)[mask].abs().mean() < 0.5
    update = policy.update(batch, SFT(), micro_batch_size=ROWS)
    assert update.grad_norm > 0


def test_token_counts_are_aligned(layout: Layout) -> None:
    """Every linear layer reads a multiple of 32 tokens, packed and padded."""
    precision = PrecisionConfig(fp8=FP8Config(recipe="mxfp8", emulation=True))
    policy = policy_in(Layout(**{**vars(layout), "token_multiple": 32}), precision, **FP8_SHAPE)
    seen: list[int] = []
    for module in policy.models[0].decoder.modules():
        if hasattr(module, "fp8_rounding"):
            module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:-1].numel()))
    for size in (1, TokenBudget(64)):
        policy.log_probs(random_batch(3), size)
    assert len(seen) >= 2 * 2 * 4
    assert all(tokens % 32 == 0 for tokens in seen)


def test_the_embedding_the_norms_and_the_head_are_not_rounded(layout: Layout) -> None:
    precision = PrecisionConfig(fp8=FP8Config(recipe="mxfp8", emulation=True))
    policy = policy_in(layout, precision, **FP8_SHAPE)
    rounded = {name for name, module in policy.models[0].named_modules() if hasattr(module, "fp8_rounding")}
    layers = ("self_attention.linear_proj", "self_attention.linear_qkv", "mlp.linear_fc1", "mlp.linear_fc2")
    assert rounded == {f"decoder.layers.{index}.{name}" for index in range(2) for name in layers}


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", "blockwise", "mxfp8"])
def test_megatron_takes_the_keys_of_transformer_engines_fp8(recipe: str) -> None:
    """Its own dataclasses check them; the layers themselves need a GPU."""
    precision = PrecisionConfig(dtype="bf16", fp8=FP8Config(recipe=recipe, format="hybrid", param=True, history=7))
    config = transformer_config(tiny_recipe(**FP8_SHAPE).model, ParallelConfig(), precision)
    assert (config.fp8, config.fp8_recipe, config.fp8_param, config.bf16) == ("hybrid", recipe, True, True)
    assert config.fp8_amax_history_len == 7
    assert token_alignment(config) == get_fp8_align_size(recipe) == precision.fp8.alignment
    buffers = DistributedDataParallelConfig(**gradient_buffer_options(precision))
    optimizer = MegatronOptimizerConfig(**optimizer_options(precision))
    assert buffers.fp8_param_gather and optimizer.fp8_recipe == recipe
    assert buffers.reuse_grad_buf_for_mxfp8_param_ag == (recipe == "mxfp8")


def test_a_users_own_fp8_config_is_aligned_too() -> None:
    precision = PrecisionConfig(dtype="bf16", fp8=FP8Config(recipe="mxfp8"))
    config = transformer_config(tiny_recipe(**FP8_SHAPE).model, ParallelConfig(), precision)
    del config.megarl_token_alignment
    assert token_alignment(config) == 32


@pytest.mark.parametrize("recipe", ["delayed", "mxfp8"])
def test_recomputed_layers_round_alike(layout: Layout, recipe: str) -> None:
    """The second forward pass has the first one's scales, and its values enter the history once."""
    precision = PrecisionConfig(fp8=FP8Config(recipe=recipe, emulation=True))
    aligned = Layout(**{**vars(layout), "token_multiple": precision.fp8.alignment})
    results = []
    for recompute in ("none", "full"):
        policy = policy_in(aligned, precision, recompute=recompute, **FP8_SHAPE)  # type: ignore[arg-type]
        for seed in range(3):
            policy.update(random_batch(ROWS, seed), SFT(), micro_batch_size=2)
        histories = [value for name, value in policy.models[0].named_buffers() if name.endswith("history_H")]
        results.append(torch.cat([weights(policy), *histories]))
    assert torch.equal(*results)

"""Refusals of precisions that cannot be, and what FP8 pads tokens to."""

from collections.abc import Callable

import pytest

from megarl.config.errors import RecipeError
from megarl.config.load import load_recipe
from megarl.config.model import ParallelConfig
from megarl.config.precision import FP8Config

Write = Callable[[str, str], str]

EXPERTS = "model: {family: qwen3_moe, moe: {num_experts: 4, ffn_hidden_size: %d}}"
EMULATED = "fp8: {recipe: %s, emulation: true}"
CASES = {
    "precision: {dtype: fp16, loss_scale: {initial: 4, least: 8}}": (
        "precision.loss_scale.least=8.0 is above precision.loss_scale.initial=4; give at most that."
    ),
    "precision: {dtype: fp16, loss_scale: {initial: 100}}": (
        "precision.loss_scale.initial=100.0 is no power of two, so that it rounds the gradients; give one, such as 64."
    ),
    f"precision: {{dtype: fp16, {EMULATED % 'mxfp8'}}}": (
        "precision.dtype=fp16 scales the loss by overflows, which precision.fp8.recipe=mxfp8 saturates away; "
        "set it to bf16."
    ),
    "precision: {fp8: {recipe: blockwise}}": (
        "precision.dtype=fp32 is not what Transformer Engine's FP8 layers compute in beside FP8; "
        "set it to bf16, or precision.fp8.emulation=true."
    ),
    f"model: {{hidden_size: 72}}\nprecision: {{{EMULATED % 'tensorwise'}}}": (
        "model.hidden_size=72 makes layers of 72, which precision.fp8.recipe=tensorwise cannot cut into 16s; "
        "give a multiple of 16 a rank."
    ),
    f"parallel: {{world_size: 2, tensor: 2}}\nmodel: {{ffn_hidden_size: 96}}\nprecision: {{{EMULATED % 'mxfp8'}}}": (
        "model.ffn_hidden_size=96 over parallel.tensor=2 makes layers of 48, which precision.fp8.recipe=mxfp8 cannot "
        "cut into 32s; give a multiple of 32 a rank."
    ),
    f"model: {{head_dim: 24, num_attention_heads: 1}}\nprecision: {{{EMULATED % 'delayed'}}}": (
        "model.head_dim=24 times the 1 query heads of a rank makes layers of 24, which precision.fp8.recipe=delayed "
        "cannot cut into 16s; give a multiple of 16 a rank."
    ),
    f"{EXPERTS % 72}\nprecision: {{{EMULATED % 'blockwise'}}}": (
        "model.moe.ffn_hidden_size=72 over parallel.tensor=1 makes layers of 72, which precision.fp8.recipe=blockwise "
        "cannot cut into 16s; give a multiple of 16 a rank."
    ),
    # each expert is split, and the other layers are not
    f"{EXPERTS % 64}\nparallel: {{world_size: 4, expert_tensor: 4}}\nprecision: {{{EMULATED % 'mxfp8'}}}": (
        "model.moe.ffn_hidden_size=64 over parallel.expert_tensor=4 makes layers of 16, which "
        "precision.fp8.recipe=mxfp8 cannot cut into 32s; give a multiple of 32 a rank."
    ),
    # four ranks share a key-value head: (8 + 2) x 32 / 4 = 80
    f"model: {{num_attention_heads: 8}}\nparallel: {{world_size: 4, tensor: 4}}\nprecision: {{{EMULATED % 'mxfp8'}}}": (
        "model.num_query_groups=1 key-value heads of size 32 beside the 8 query heads over parallel.tensor=4 makes "
        "layers of 80, which precision.fp8.recipe=mxfp8 cannot cut into 32s; give a multiple of 32 a rank."
    ),
    "precision: {fp8: {recipe: mxfp8, emulation: true, param: true}}": (
        "precision.fp8.param=true stores weights in FP8, and precision.fp8.emulation=true only rounds them; "
        "set one of the two to false."
    ),
    "precision: {dtype: bf16, fp8: {recipe: mxfp8, param: true}}": (
        "precision.fp8.param=true needs the distributed optimizer, which holds the fp32 weights; "
        "set parallel.distributed_optimizer=true."
    ),
    "precision: {dtype: bf16, fp8: {recipe: delayed}}": (
        "precision.fp8.recipe=delayed scales by the history of training, which the frozen reference does not have; "
        "choose another recipe, or set rl.measure_reference=false and rl.kl.coefficient=0."
    ),
    f"precision: {{{EMULATED % 'mxfp8'}}}\nmodel: {{max_position_embeddings: 100}}\nrl: {{micro_batch_tokens: 100}}": (
        "rl.micro_batch_tokens=100 holds no sequence of model.max_position_embeddings=100 tokens, padded to a multiple "
        "of 32; give at least 128 or shorten the context."
    ),
    **{
        f"precision: {{batch_invariant: true{more}}}\n{text}": (
            f"{found} has no batch-invariant form, which precision.batch_invariant=true asks for; set it to {covered}, "
            "or precision.batch_invariant=false."
        )
        for text, more, found, covered in (
            ("rollout: {engine: vllm}", "", "rollout.engine=vllm", "embedded"),
            ("rollout: {top_p: 0.9}", "", "rollout.top_p=0.9", "1"),
            ("rollout: {top_k: 5}", "", "rollout.top_k=5", "0"),
            (EXPERTS % 64, "", "model.moe.num_experts=4", "0"),
            ("", f", {EMULATED % 'blockwise'}", "precision.fp8.recipe=blockwise", "none"),
        )
    },
}


@pytest.mark.parametrize("text", CASES)
def test_refusal(text: str, write: Write) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write("a.yaml", text))
    assert str(caught.value) == CASES[text]


def test_a_width_that_no_layer_has_is_not_looked_at(write: Write) -> None:
    """Where every layer has experts."""
    text = "model: {family: qwen3_moe, ffn_hidden_size: 7, moe: {num_experts: 4, dense_layers: %s}}\nprecision: {%s}"
    load_recipe(write("a.yaml", text % ([], EMULATED % "mxfp8")))
    with pytest.raises(RecipeError, match=r"^model\.ffn_hidden_size=7 over parallel\.tensor=1 makes layers of 7"):
        load_recipe(write("a.yaml", text % ([1], EMULATED % "mxfp8")))


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed", "blockwise", "mxfp8"])
def test_emulated_recipes_load(recipe: str, write: Write) -> None:
    """On the default model, whose sizes are multiples of 32."""
    loaded = load_recipe(write("a.yaml", f"precision: {{{EMULATED % recipe}}}"))
    assert loaded.recipe.precision.fp8.alignment == (32 if recipe == "mxfp8" else 16)


@pytest.mark.parametrize(
    ("parallel", "alignment", "multiple"),
    [
        (ParallelConfig(), 1, 1),
        (ParallelConfig(), 16, 16),
        # the two chunks of a context rank together are its 16 tokens
        (ParallelConfig(context=2), 16, 32),
        (ParallelConfig(context=2), 1, 4),
        (ParallelConfig(tensor=2), 32, 32),
        (ParallelConfig(tensor=2, sequence=True), 32, 64),
        (ParallelConfig(tensor=2, sequence=True, context=2), 16, 64),
    ],
)
def test_every_rank_has_an_aligned_number_of_tokens(parallel: ParallelConfig, alignment: int, multiple: int) -> None:
    assert parallel.token_multiple(alignment) == multiple


def test_without_fp8_nothing_is_aligned() -> None:
    assert FP8Config().alignment == 1

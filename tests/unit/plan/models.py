"""Published models, and layouts for them."""

from megarl.plan.shape import Batch, Shape

QWEN2_5_7B = Shape(layers=28, hidden=3584, ffn=18944, heads=28, groups=4, head_dim=128, vocab=152_064, tied=False)
QWEN2_5_HALF_B = Shape(layers=24, hidden=896, ffn=4864, heads=14, groups=2, head_dim=64, vocab=151_936)
LLAMA_3_8B = Shape(
    layers=32, hidden=4096, ffn=14336, heads=32, groups=8, head_dim=128, vocab=128_256, tied=False, qkv_bias=False
)
QWEN3_30B_A3B = Shape(
    layers=48,
    hidden=2048,
    ffn=6144,
    heads=32,
    groups=4,
    head_dim=128,
    vocab=151_936,
    tied=False,
    qkv_bias=False,
    qk_norm=True,
    experts=128,
    experts_per_token=8,
    expert_ffn=768,
)
BATCH = Batch(rows=1, tokens=4096, longest=4096, trained=2048, count=16)

"""Model families: one file each, found by the recipe's model.family."""

from megarl.megatron.models import llama, qwen2, qwen3, qwen3_moe
from megarl.megatron.models.family import Family

FAMILIES: dict[str, Family] = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "qwen3_moe": qwen3_moe}

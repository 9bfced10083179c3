"""Model families: one file each, found by the recipe's model.family."""

from types import ModuleType

from megarl.megatron.models import qwen2

FAMILIES: dict[str, ModuleType] = {"qwen2": qwen2}

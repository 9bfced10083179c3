"""What every engine's server inherits from the trainer, and the engines' names of number formats."""

from collections.abc import Mapping

from megarl.config.schema import Recipe
from megarl.platform.child import python_path
from megarl.rollout.guard import TOKEN

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_OF_THE_TRAINER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
"""Variables of the trainer's world, which the engine would take for its own."""
_OF_OTHER_SERVERS = ("VLLM_API_KEY", "SGLANG_GRPC_PORT")
"""The first would have vLLM ask for another token than the run's, the second open a door of SGLang's past the guard."""


def common_environment(inherited: Mapping[str, str], token: str) -> dict[str, str]:
    """The trainer's environment without what is of the trainer's world or of other servers, with the token."""
    left_out = (*_OF_THE_TRAINER, *_OF_OTHER_SERVERS)
    environment = {name: value for name, value in inherited.items() if name not in left_out}
    return environment | {
        # this very package, in whatever environment the engine lives
        "PYTHONPATH": python_path(inherited),
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        TOKEN: token,
    }


def engine_dtype(recipe: Recipe) -> str:
    """The engines' name of what the servers compute in."""
    return DTYPES[recipe.engine.dtype_beside(recipe.precision.dtype)]

"""Messages of Megatron-core and torch that a run always gets and no user can act on."""

import logging
import re
import warnings
from functools import partial

_WARNINGS = (
    # TransformerConfig complains of its own default
    (UserWarning, "full scope is deprecated. Use empty cuda_graph_"),
    (UserWarning, "MimoModelConfig is experimental"),
    # a CUDA scheduling hint, in every tensor-parallel run
    (UserWarning, "When using async grad allreduce it is recommended"),
    # collectives under the names that Megatron-core knows them by
    (FutureWarning, "`torch.distributed.all_gather_into_tensor` is deprecated"),
    (FutureWarning, "`torch.distributed.reduce_scatter_tensor` is deprecated"),
    # what Megatron-core's checkpointing calls in torch.distributed.checkpoint
    (FutureWarning, "`load_state_dict` is deprecated and will be removed in future versions"),
    (UserWarning, "The argument order of load has been changed."),
    (UserWarning, "torch.distributed is disabled, unavailable or uninitialized, assuming the intent is to"),
    (FutureWarning, "Please use DTensor instead and we are deprecating ShardedTensor"),
)
_LOGS = {
    "megatron.core.rerun_state_machine": (
        "Implicit initialization of Rerun State Machine!",
        "RerunStateMachine initialized in mode RerunMode.DISABLED",
    ),
    # 0.19 asks for HybridModel, which 0.16 does not have
    "megatron.core.models.gpt.gpt_model": ("GPTModel IS DEPRECATED",),
    "megatron.core.dist_checkpointing.strategies.torch": ("MCore's async save is deprecated",),
    "megatron.core.dist_checkpointing.strategies.common": ("load_common is deprecated",),
}


def quiet() -> None:
    """Filters exactly these messages."""
    for category, beginning in _WARNINGS:
        warnings.filterwarnings("ignore", message=re.escape(beginning), category=category)
    for logger, beginnings in _LOGS.items():
        logging.getLogger(logger).addFilter(partial(_is_news, beginnings))


def _is_news(known: tuple[str, ...], record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(known)

"""What a column-parallel linear layer of Megatron-core multiplies, as its own product forms it."""

from typing import Any

from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
from torch import Tensor


def whole_input(input_: Tensor, group: Any, *, is_split: bool, adds_gradients: bool) -> Tensor:
    """The layer's input with all its tokens, its gradient the sum of the tensor-parallel ranks' where they share it.

    Args:
        input_: [tokens, ...], or under sequence parallelism this rank's part of them.
        group: the tensor-parallel ranks.
        is_split: whether it is such a part; Megatron-core's `sequence_parallel`.
        adds_gradients: Megatron-core's `allreduce_dgrad`.
    """
    whole: Tensor = input_
    if is_split:
        whole = gather_from_sequence_parallel_region(input_, group=group)
    elif adds_gradients:
        whole = copy_to_tensor_model_parallel_region(input_, group=group)
    return whole

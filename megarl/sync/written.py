"""Which of a model's parameters a weight loader wrote."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode

_WRITES = (torch.ops.aten.copy_.default, torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor)


class Written(TorchDispatchMode):
    """While it is entered, notes the memory that is copied or filled into. It may be entered again and again.

    An engine's loader passes over a name that it does not know and says nothing of a parameter that never comes, so it
    is watched. It sees what the thread does that entered it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Passes the operation on."""
        if func in _WRITES:
            self._memory.add(_memory(args[0]))
        return func(*args, **(kwargs or {}))

    def left_out(self, model: Module) -> list[str]:
        """The model's own names of parameters that nothing was written into.

        A fused one of which a part came is none of them, for engines pad theirs, and padding is never written.
        """
        return sorted(name for name, parameter in model.named_parameters() if _memory(parameter) not in self._memory)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()

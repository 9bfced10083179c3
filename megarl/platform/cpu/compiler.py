"""torch.compile on the CPU platform."""

from collections.abc import Callable
from typing import Any

import torch


def run_eagerly() -> None:
    """Makes torch.compile run the Python body.

    Megatron wraps small functions in torch.compile (`jit_fuser`). Inductor would call a C++ compiler for each of them,
    for minutes and for no gain at the sizes that fit a CPU.
    """
    # for what was compiled before; it imports dynamo
    torch.compiler.set_stance("force_eager")
    # Even a function that runs eagerly has torch.compile load Inductor, which is a fourth of a run's start.
    torch.compile = _unchanged  # type: ignore[assignment]


def _unchanged(model: Callable[..., Any] | None = None, **_: Any) -> Any:
    """torch.compile's two forms: of a function or module, and as a decorator with options."""
    return (lambda function: function) if model is None else model

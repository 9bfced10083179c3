"""torch.compile on the CPU platform."""

import torch


def run_eagerly() -> None:
    """Makes torch.compile run the Python body.

    Megatron wraps small functions in torch.compile (`jit_fuser`). Inductor would call a C++ compiler for each of them,
    for minutes and for no gain at the sizes that fit a CPU.
    """
    torch.compiler.set_stance("force_eager")

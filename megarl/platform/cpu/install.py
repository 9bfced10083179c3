"""Installs every CPU stand-in, in the one order that works."""

import sys

from megarl.platform.cpu.collectives import patch_collectives
from megarl.platform.cpu.compiler import run_eagerly
from megarl.platform.cpu.device import patch_device
from megarl.platform.cpu.factories import patch_factories
from megarl.platform.cpu.quiet import quiet
from megarl.platform.cpu.streams import patch_streams
from megarl.platform.cpu.tensors import patch_tensors


def install_cpu() -> None:
    """Patches torch, imports Megatron's optimizer and gives it the CPU's Adam.

    Raises:
        RuntimeError: megatron.core was imported before.
    """
    if "megatron.core" in sys.modules:
        raise RuntimeError(
            "megatron.core was imported before megarl could prepare torch for the CPU, so it holds names of "
            "torch.cuda that fail here: import megarl.megatron before megatron.core."
        )
    # First: importing dynamo indexes torch's functions by identity, so it must see the original ones.
    run_eagerly()
    patch_device()
    patch_streams()
    patch_factories()
    patch_tensors()
    patch_collectives()
    quiet()
    # Last: it imports Megatron, which must find torch patched and its warnings filtered.
    from megarl.platform.cpu.optimizer import patch_optimizer

    patch_optimizer()

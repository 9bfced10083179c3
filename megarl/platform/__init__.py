"""Where the program runs: CUDA with NCCL, or the CPU with gloo."""

from megarl.platform.platform import Platform, current, install

__all__ = ["Platform", "current", "install"]

"""The one place that asks whether there is a GPU."""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class Platform:
    """What the machine offers to this process.

    Attributes:
        name: 'cuda' or 'cpu'.
        device: where this process keeps its tensors.
        dist_backend: torch.distributed backend that carries tensors of that device.
    """

    name: Literal["cuda", "cpu"]
    device: torch.device
    dist_backend: Literal["nccl", "gloo"]

    @property
    def devices_here(self) -> int | None:
        """Number of GPUs that this process sees; None on the CPU, which any number of processes may share."""
        return torch.cuda.device_count() if self.name == "cuda" else None

    def use_device(self) -> None:
        """Makes `device` the process's current CUDA device; does nothing on the CPU."""
        if self.name == "cuda":
            torch.cuda.set_device(self.device)

    def synchronize(self) -> None:
        """Waits until the device has done all that was asked of it. CPU operations are done when they return."""
        if self.name == "cuda":
            torch.cuda.synchronize(self.device)

    def mark(self) -> "torch.cuda.Event | None":
        """The point that the device's current stream has been asked to come to; None on the CPU."""
        if self.name != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    @contextlib.contextmanager
    def beside(self, mark: "torch.cuda.Event | None") -> Iterator[None]:
        """What the device is asked for in the block starts at that point, beside later work, and is done by its end.

        Args:
            mark: of `mark`, by any thread.
        """
        if mark is None:
            yield
            return
        stream = torch.cuda.Stream(self.device)
        stream.wait_event(mark)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


@functools.cache
def current() -> Platform:
    """The platform of this process, decided at the first call.

    On CUDA the device is the one of LOCAL_RANK (torchrun) or SLURM_LOCALID (srun); a process that sees one GPU takes
    that one.
    """
    if not torch.cuda.is_available():
        return Platform("cpu", torch.device("cpu"), "gloo")
    local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    index = local_rank if torch.cuda.device_count() > 1 else 0
    return Platform("cuda", torch.device("cuda", index), "nccl")


def has_transformer_engine() -> bool:
    """Whether Transformer Engine is installed."""
    return importlib.util.find_spec("transformer_engine") is not None


def has_triton() -> bool:
    """Whether Triton is installed, as torch's CUDA builds for Linux ask for."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def install() -> Platform:
    """Makes Megatron-core runnable here, once, and returns the platform. Nothing to do on CUDA.

    Raises:
        RuntimeError: on the CPU, if megatron.core was imported before: it then holds unpatched names.
    """
    platform = current()
    if platform.name == "cpu":
        # Imported here, so that a process on CUDA never loads the stand-ins.
        from megarl.platform.cpu.install import install_cpu

        install_cpu()
    return platform

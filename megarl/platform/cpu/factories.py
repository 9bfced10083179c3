"""torch's factory functions under `device="cuda"`."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device as torch_device_mode

FACTORIES = (
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
)


def _is_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or getattr(device, "type", None) == "cuda"


def _redirected(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = torch.device("cpu")
        # Pinning is for copies to an accelerator, and raises where there is none.
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return on_cpu


def patch_factories() -> None:
    """Sends the factories' literal `device="cuda"` to the CPU and drops `pin_memory`, both of which raise."""
    # `with torch.device("meta")` knows the factories by identity and caches the set at its first use: it must hold
    # the originals, or the context would do nothing (transformers builds models under it).
    torch_device_mode._device_constructors()
    for name in FACTORIES:
        setattr(torch, name, _redirected(getattr(torch, name)))

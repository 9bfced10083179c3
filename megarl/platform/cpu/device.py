"""torch.cuda's functions for the current device and its random generator."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _current_device() -> torch.device:
    return torch.device("cpu")


def _set_device(device: Any) -> None:
    pass


def _device(device: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _synchronize(device: Any = None) -> None:
    pass


def _reset_peak_memory_stats(device: Any = None) -> None:
    pass


def _is_current_stream_capturing() -> bool:
    return False


def _lazy_call(callback: Callable[[], None], **kwargs: Any) -> None:
    callback()


def _get_rng_state(device: Any = None) -> Tensor:
    return torch.get_rng_state()


def _set_rng_state(new_state: Tensor, device: Any = None) -> None:
    torch.set_rng_state(new_state)


def _manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


class _Generators:
    """`torch.cuda.default_generators`: the CPU generator under every index."""

    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return 1


def patch_device() -> None:
    """Lets the CPU be the current device and its generator the device's generator.

    Most of these raise without CUDA. `_lazy_call`, `manual_seed` and `set_rng_state` do not: they queue the call for
    a CUDA that never starts, so Megatron's random-state tracker would silently track nothing. `manual_seed_all` and
    `get_rng_state_all` are right as they are, since there are no devices.
    """
    cuda: Any = torch.cuda
    cuda.current_device = _current_device
    cuda.set_device = _set_device
    cuda.device = _device
    cuda.synchronize = _synchronize
    cuda.reset_peak_memory_stats = _reset_peak_memory_stats
    cuda.is_current_stream_capturing = _is_current_stream_capturing
    cuda._lazy_call = _lazy_call
    cuda.manual_seed = cuda.random.manual_seed = _manual_seed
    cuda.get_rng_state = cuda.random.get_rng_state = _get_rng_state
    cuda.set_rng_state = cuda.random.set_rng_state = _set_rng_state
    cuda.default_generators = _Generators()

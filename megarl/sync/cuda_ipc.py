"""Transport between processes on GPUs of one machine: the trainer's GPU memory, opened by the workers."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from megarl.platform.platform import current
from megarl.sync.bucket import Bucket, tensors_in


class CudaIpcSender:
    """Implements `megarl.sync.transport.Sender`. The buckets are the trainer's GPU memory; nothing is copied for it.

    PyTorch's caching allocator must hand out memory of cudaMalloc's: with expandable segments CUDA exports none.
    """

    def __init__(self, slots: int = 2) -> None:
        self.slots, self.bytes_written = slots, 0
        self._buffers: list[Tensor | None] = [None] * slots

    def describe(self) -> dict[str, Any]:
        """See `Sender`."""
        return {"transport": "cuda_ipc"}

    def write(self, slot: int, bucket: Bucket, tensors: Iterable[Tensor]) -> dict[str, Any]:
        """See `Sender`."""
        held = self._buffers[slot]
        if held is None or held.numel() < bucket.nbytes:
            self._buffers[slot] = None
            held = self._buffers[slot] = torch.empty(bucket.nbytes, dtype=torch.uint8, device=current().device)
        for index, tensor in enumerate(tensors):
            bucket.view(held, index).copy_(tensor)
        self.bytes_written += bucket.nbytes
        # the workers' streams know nothing of this one
        current().synchronize()
        # exported anew each time, since PyTorch counts what each export is read by
        _, *exported = held.untyped_storage()._share_cuda_()
        return {
            "gpu": _uuid(held.device),
            "storage": [_to_json(part) for part in exported],
            "begin": held.storage_offset(),
            "nbytes": bucket.nbytes,
            "contents": bucket.as_json(),
        }

    def reset(self) -> None:
        """See `Sender`: nothing waits for anybody."""

    def close(self) -> None:
        """See `Sender`."""
        self._buffers = []
        torch.cuda.ipc_collect()


class CudaIpcReader:
    """Implements `megarl.sync.transport.Reader`."""

    @contextmanager
    def read(self, where: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """See `Reader`.

        Raises:
            RuntimeError: this process does not see the trainer's GPU.
        """
        device = _device_of(where["gpu"])
        exported = [_from_json(part) for part in where["storage"]]
        with torch.cuda.device(device):
            storage = torch.UntypedStorage._new_shared_cuda(device.index, *exported)
            buffer = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
            tensors = tensors_in(buffer[where["begin"] : where["begin"] + where["nbytes"]], where["contents"])
            yield tensors
            tensors.clear()
            # the loads that were asked for read the trainer's memory, which it writes to next
            torch.cuda.synchronize()
            if torch.cuda.current_device() != device.index:
                torch.cuda.synchronize(device)


def _uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _device_of(uuid: str) -> torch.device:
    for index in range(torch.cuda.device_count()):
        if _uuid(torch.device("cuda", index)) == uuid:
            return torch.device("cuda", index)
    raise RuntimeError(f"sync.transport=cuda_ipc: this worker does not see the trainer's GPU {uuid}")


def _to_json(part: Any) -> Any:
    return {"bytes": base64.b64encode(part).decode()} if isinstance(part, bytes) else part


def _from_json(part: Any) -> Any:
    return base64.b64decode(part["bytes"]) if isinstance(part, dict) else part

"""A process group for the trainer's main rank and the engines' workers, beside the worlds that each is in."""

import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

ROOT = 0
"""The trainer's rank in the group."""
_SEATS = "seats"


def local_address(towards: str) -> str:
    """This machine's address by which the machine `towards` reaches it; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))
        address: str = probe.getsockname()[0]
        return address


def serve_store(address: str, timeout_s: float) -> tuple[TCPStore, int]:
    """A store that listens on this one address, and its port; by itself one would listen on all."""
    listening = socket.socket()
    listening.bind((address, 0))
    listening.listen()
    port: int = listening.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    return store, port


def join_store(address: str, port: int, timeout_s: float) -> TCPStore:
    """The store of `serve_store`, for a worker."""
    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


def take_seat(store: TCPStore) -> int:
    """A worker's rank in the group, from 1: in a broadcast it does not matter who sits where."""
    return int(store.add(_SEATS, 1))


def seats_taken(store: TCPStore) -> int:
    """Workers that have come."""
    return int(store.add(_SEATS, 0))


def build_group(backend: str, store: TCPStore, rank: int, size: int, address: str, timeout_s: float) -> Any:
    """Joins the group; waits for the others.

    Args:
        backend: 'gloo' or 'nccl'.
        store: where the members find each other.
        rank: this process's.
        size: members.
        address: this machine's, on which gloo listens.
        timeout_s: longest wait for the others, here and in each operation.
    """
    own = PrefixStore(backend, store)
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupNCCL(own, rank, size, options)
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [gloo.create_device(hostname=address)]
    options._threads = 2
    return gloo(own, rank, size, options)


def broadcast(group: Any, buffer: Tensor) -> None:
    """Sends the trainer's bytes, or receives them into `buffer`; returns when they are there.

    Raises:
        RuntimeError: a member is gone, or did not come within the group's time.
    """
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = ROOT, 0
    group.broadcast([buffer], options).wait()
    if buffer.is_cuda:
        # NCCL's wait only orders this stream behind the transfer
        torch.cuda.current_stream(buffer.device).synchronize()

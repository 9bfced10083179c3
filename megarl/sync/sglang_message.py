"""What tells an SGLang worker about a bucket: JSON in the one tensor that its update endpoint carries."""

import base64
import json
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def encode(message: Mapping[str, Any]) -> str:
    """The message as a tensor's bytes, in the endpoint's form of a worker's tensors: base64 of a pickle."""
    words = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
    return base64.b64encode(pickle.dumps([("megarl", words)])).decode()


def decode(tensors: list[tuple[str, Tensor]]) -> dict[str, Any]:
    """The worker's side of `encode`."""
    ((_, words),) = tensors
    message: dict[str, Any] = json.loads(bytes(words.cpu().numpy()))
    return message

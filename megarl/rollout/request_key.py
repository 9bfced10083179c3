"""The name of a request, which seeds its sampling at a server."""

import hashlib

from megarl.rollout.types import Request


def request_key(request: Request, seed: int) -> bytes:
    """16 bytes of seed, stream, problem and sample: the same for a request whenever, wherever and beside what it runs.

    Args:
        request: what is sampled.
        seed: the recipe's.
    """
    name = f"{seed}/rollout/{request.stream}/{request.problem_id}/{request.sample}"
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def sampling_seed(key: bytes) -> int:
    """A server's seed for the request of that key, below 2^63."""
    return int.from_bytes(key[:8], "little") >> 1

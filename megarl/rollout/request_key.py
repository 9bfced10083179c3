"""The name of a request, which seeds its sampling at a server."""

import hashlib

from megarl.rollout.types import Request


def request_key(request: Request, seed: int) -> bytes:
    """16 bytes that name the request and seed its sampling: the same for it whenever and wherever it runs."""
    name = f"{seed}/rollout/{request.stream}/{request.problem_id}/{request.sample}"
    return hashlib.blake2b(name.encode(), digest_size=16).digest()

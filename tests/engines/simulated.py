"""Starts the simulated server for a test, and ends it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.runs import REPOSITORY

VOCAB = 28
"""Of the demo's tokenizer, special tokens left out."""


@contextmanager
def simulated_server(
    *,
    token_ms: float,
    tokens: tuple[int, int] = (1, 16),
    slots: int = 64,
    port: int = 0,
    secret: str = "",
    release: str = "1.0",
    log_probs: str = "processed_logprobs",
) -> Iterator[str]:
    """URL of a server that is up; the arguments are those of tests/engines/simulated_latency_server.py."""
    command = [sys.executable, "-m", "tests.engines.simulated_latency_server", "--tokens", *map(str, tokens)]
    settings = {"port": port, "vocab": VOCAB, "token-ms": token_ms, "slots": slots, "secret": secret}
    for name, value in {**settings, "release": release, "log-probs": log_probs}.items():
        command += [f"--{name}", str(value)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the simulated server ended"
            yield f"http://127.0.0.1:{int(line)}"
        finally:
            process.kill()

"""A port for a test's own server."""

import socket


def free_port() -> int:
    """A loopback port that was free a moment ago; for programs that take a number and cannot pick one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

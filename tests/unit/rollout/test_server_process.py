"""A server's process: its exit code, its last words, and that nothing of it outlives it or who started it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from megarl.rollout.server_process import ServerProcess, reserved_port

WITH_A_CHILD = (
    "import pathlib, subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "pathlib.Path(sys.argv[1]).write_text(str(child.pid));"
    "time.sleep(600)"
)
LIMIT_S = 60.0


def wait_for_child(path: Path) -> psutil.Process:
    deadline = time.monotonic() + LIMIT_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return psutil.Process(int(path.read_text()))


def started(code: str, folder: Path) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", code, str(folder / "child")], dict(os.environ), folder / "server.log")


def wait_for_exit(server: ServerProcess) -> int:
    deadline = time.monotonic() + LIMIT_S
    while (code := server.exit_code) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return code


@pytest.mark.parametrize(
    ("code", "wanted"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
    ids=["ends", "is killed"],
)
def test_its_exit_code_is_the_servers(code: str, wanted: int, tmp_path: Path) -> None:
    server = started(code, tmp_path)
    assert wait_for_exit(server) == wanted
    server.end()


def test_its_last_words_are_told(tmp_path: Path) -> None:
    server = started("print('why it failed'); raise SystemExit(1)", tmp_path)
    assert wait_for_exit(server) == 1
    assert "ended with code 1" in str(server.failure()) and "why it failed" in str(server.failure())
    assert not server.lost_its_port()
    server.end()


def test_a_port_that_is_taken_is_told_apart(tmp_path: Path) -> None:
    code = (
        "import socket; held = socket.create_server(('127.0.0.1', 0));"
        "socket.create_server(('127.0.0.1', held.getsockname()[1]), reuse_port=False)"
    )
    server = started(code, tmp_path)
    assert wait_for_exit(server) == 1
    assert server.lost_its_port()
    server.end()


def test_the_end_takes_its_children_along(tmp_path: Path) -> None:
    server = started(WITH_A_CHILD, tmp_path)
    child = wait_for_child(tmp_path / "child")
    server.end()
    child.wait(LIMIT_S)


def test_who_started_it_is_killed(tmp_path: Path) -> None:
    trainer = (
        "import os, pathlib, sys, time\n"
        "from megarl.rollout.server_process import ServerProcess\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "server = [sys.executable, '-c', sys.argv[2], str(folder / 'child')]\n"
        "ServerProcess(server, dict(os.environ), folder / 'server.log')\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", trainer, str(tmp_path), WITH_A_CHILD])
    child = wait_for_child(tmp_path / "child")
    process.kill()
    process.wait()
    child.wait(LIMIT_S)


def test_a_reserved_port_is_kept_for_a_server_that_may_share_it() -> None:
    with reserved_port() as kept, socket.socket() as thief, socket.socket() as server:
        port = kept.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", port))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", port))
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
        server.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=20):
            pass

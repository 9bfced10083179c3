"""An engine's server as a child process: started, watched, and ended with everything that it started."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from megarl.rollout.engine import EngineError

# The trainer may be killed with no time to end its servers. Then its end of the pipe closes, and all of the session's
# processes go, those that the server started and would outlive it included.
_SUPERVISE = 'exec 3<&0; "$@" 3<&- </dev/null & server=$!; (cat <&3 >/dev/null; kill -KILL 0) & wait "$server"'
_LOG_LINES = 12
_PORT_TAKEN = ("address already in use", "Address already in use")


class ServerProcess:
    """One server in a session of its own, whose output goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Starts it; it ends with this process, however that ends.

        Args:
            command: program and arguments.
            environment: all of it.
            log: file that its output is added to.
        """
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SUPERVISE, "sh", *command],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 and the signal's number where one killed it."""
        return self._process.poll()

    def end(self) -> None:
        """Kills it and its children. A server has nothing to save."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def lost_its_port(self) -> bool:
        """Whether it ended because another process had taken its port before it listened there."""
        return any(words in line for line in self._last_lines() for words in _PORT_TAKEN)

    def failure(self) -> EngineError:
        """What to tell of a server that ended by itself: the last lines of its log say why."""
        told = "\n  ".join(self._last_lines())
        return EngineError(f"the server ended with code {self.exit_code}; {self._log} ends with\n  {told}")

    def _last_lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]


def reserved_port() -> socket.socket:
    """A socket that keeps a port of all interfaces, its own `getsockname()[1]`, from being given to other processes.

    It does not listen, and allows a server that sets SO_REUSEADDR, as uvicorn's do, to listen there beside it. Until
    then the kernel hands the port to nobody: neither to who asks for any free port, nor to a connection for its own
    end, a connection to this very port included, which would otherwise reach itself.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("0.0.0.0", 0))
    return kept


def free_port() -> int:
    """A port of the loopback interface that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

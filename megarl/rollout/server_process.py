"""An engine's server as a child process: started, watched, and ended with everything that it started."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from megarl.platform.child import die_with_parent
from megarl.rollout.engine import EngineError

_LOG_LINES = 12


class ServerProcess:
    """One server in a session of its own, whose output goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Starts it. To be called on the main thread: the server ends when the thread that started it does.

        Args:
            command: program and arguments.
            environment: all of it.
            log: file that its output is added to.
        """
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Kills it and its children. A server has nothing to save."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def failure(self) -> EngineError:
        """What to tell of a server that ended by itself: the last lines of its log say why."""
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        told = "\n  ".join(lines)
        return EngineError(f"the server ended with code {self.exit_code}; {self._log} ends with\n  {told}")


def free_port() -> int:
    """A port of the loopback interface that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

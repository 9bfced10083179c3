"""A headless Chromium, driven over the two pipes of its DevTools protocol.

That takes no package and opens no port. Playwright would bring 45 MB, and Selenium a driver for each browser's version.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    # what the page asks for is refused, and seen among its requests
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
TIMEOUT_S = 60.0
FREE = 20
"""File descriptors from here on are not those that the protocol is spoken over, 3 and 4."""


def program() -> str | None:
    """Path of the first of `PROGRAMS` that is here; None without one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@dataclass
class Tab:
    """One page of the browser, and what it did since it was opened.

    Attributes:
        requests: addresses that it asked for, its own first.
        complaints: texts of its uncaught exceptions and of warnings and errors in its console.
    """

    _browser: "Chromium"
    _session: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    _loaded: bool = False

    def open(self, path: Path) -> None:
        """Goes to a file and waits until it is loaded with its pictures."""
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._browser.read()

    def resize(self, width: int) -> None:
        """Sets the width of the window, CSS pixels; a narrow one is a telephone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression, awaited where it is a promise; an exception of it fails."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def screenshot(self) -> bytes:
        """The whole page, PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Result of a method of the protocol."""
        return self._browser.call(method, self._session, **parameters)

    def hear(self, method: str, told: dict[str, Any]) -> None:
        """Keeps what an event says."""
        match method:
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if told["type"] in ("warning", "error", "assert"):
                self.complaints.append(json.dumps(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("warning", "error"):
                self.complaints.append(told["entry"]["text"])


class Chromium:
    """A running browser."""

    def __init__(self, to_it: int, from_it: int, log: Path) -> None:
        """Speaks over two file descriptors, which stay the caller's. Args: log: what it prints."""
        self._to_it, self._from_it, self._log = to_it, from_it, log
        self._received = bytearray()
        self._calls = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._tabs: dict[str, Tab] = {}

    def tab(self) -> Tab:
        """A new tab, whose events are kept from now on."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        return tab

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Result of a method, once it is there; an error fails."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        text = json.dumps(message if session is None else {**message, "sessionId": session})
        os.write(self._to_it, text.encode() + b"\0")
        while self._calls not in self._answers:
            self.read()
        answer = self._answers.pop(self._calls)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def read(self) -> None:
        """Waits for more of what it says, and takes in what is whole of it."""
        ready, _, _ = select.select([self._from_it], [], [], TIMEOUT_S)
        assert ready, f"the browser was silent for {TIMEOUT_S:g} s"
        part = os.read(self._from_it, 1 << 20)
        assert part, f"the browser has ended: {self._log.read_text('utf-8', 'replace')[-2000:]}"
        *whole, rest = (self._received + part).split(b"\0")
        self._received = bytearray(rest)
        for message in map(json.loads, whole):
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._tabs:
                self._tabs[message["sessionId"]].hear(message["method"], message["params"])


@contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """A browser that is ended on the way out.

    Args:
        folder: for its profile and what it prints.
    """
    found = program()
    assert found is not None, "no Chromium is here; run `make test-browser`, which installs it."
    its_in, to_it = _pipe()
    from_it, its_out = _pipe()
    # root has no sandbox to be put into
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [found, *FLAGS, *root, f"--user-data-dir={folder / 'profile'}"]
    exchange = ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash"]
    printed = folder / "chromium.log"
    with open(printed, "wb") as log:
        process = subprocess.Popen(
            [*exchange, *command],
            pass_fds=(its_in, its_out),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(its_in)
    os.close(its_out)
    try:
        yield Chromium(to_it, from_it, printed)
    finally:
        os.close(to_it)
        os.close(from_it)
        _end(process)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FREE) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


def _end(process: "subprocess.Popen[bytes]") -> None:
    # once its pipe is closed it ends by itself, and what it started with it
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

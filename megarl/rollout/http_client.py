"""HTTP to one server of an engine."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from megarl.config.errors import TokenError
from megarl.config.refusal import in_words, shortened
from megarl.rollout.engine import EngineError
from megarl.rollout.replica import ServerUnreachableError


class RefusedError(EngineError):
    """A server that answers, and not with what was asked for.

    Attributes:
        status: HTTP's.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        # other ranks get it by pickle, which gives the message alone and this attribute later
        self.status = status


class Client:
    """One server's endpoints. Threads may share it.

    Any of them raises `TokenError` where the server asks for another token.
    """

    def __init__(self, url: str, token: str, *, connections: int, timeout_s: float, health_timeout_s: float) -> None:
        """Args: url: of the server. token: it asks for. connections: at once. The rest: longest waits, in seconds."""
        self.url = url
        self._health_timeout_s = health_timeout_s
        self._http = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx2.Timeout(timeout_s, connect=health_timeout_s),
            # one more, so that its health can be asked while all others wait for responses
            limits=httpx2.Limits(max_connections=connections + 1, max_keepalive_connections=connections + 1),
            trust_env=False,
        )

    def post(self, path: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = None) -> Any:
        """The answer to a POST, parsed.

        Raises:
            ServerUnreachableError: none came.
            EngineError: the server refused.
        """
        wait = httpx2.USE_CLIENT_DEFAULT if timeout_s is None else httpx2.Timeout(timeout_s)
        return self._asked(path, lambda: self._http.post(path, json=body, timeout=wait))

    def get(self, path: str, timeout_s: float | None = None) -> Any:
        """The answer to a GET, parsed; errors as of `post`, after `timeout_s`, which is `health_timeout_s` if None."""
        wait_s = self._health_timeout_s if timeout_s is None else timeout_s
        return self._asked(path, lambda: self._http.get(path, timeout=wait_s))

    def up(self, path: str = "/health") -> bool:
        """Whether the server answers that it is ready.

        Raises:
            EngineError: what answers there is another kind of server, which will never be.
        """
        try:
            self.get(path)
        except ServerUnreachableError:
            return False
        except RefusedError as error:
            # of its own, or of a proxy before it, while it starts
            if error.status < 500:
                raise
            return False
        return True

    def close(self) -> None:
        """Drops all connections; the server aborts what it was working on for them."""
        self._http.close()

    def _asked(self, path: str, ask: Callable[[], httpx2.Response]) -> Any:
        try:
            response = ask()
        except httpx2.TransportError as error:
            raise ServerUnreachableError(f"{self.url}{path}: {type(error).__name__} {error}") from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            # by the thread that gave the server up
            raise ServerUnreachableError(f"{self.url}{path}: the connections were dropped") from error
        if response.status_code == 401:
            raise TokenError(
                f"engine.urls={self.url} answered 401, which says that it asks for another token than it was given; "
                "set the environment variable that engine.token_variable names to the server's token"
            )
        if response.status_code != 200:
            said = f": {response.text[:500]}" if response.text else ""
            raise RefusedError(f"{self.url}{path} answered {response.status_code}{said}", response.status_code)
        try:
            return response.json() if response.content else None
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{self.url}{path} answered what is no JSON: {response.text[:500]}") from error


def release_in(answer: Any, place: str) -> str:
    """The release of its software that a server tells, as `version`. Args: place: that it was asked at.

    Raises:
        EngineError: it is no line of text.
    """
    release = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(release, str) or not release or not release.isprintable():
        raise EngineError(f"{place} tells no release of its software: {in_words(answer)}")
    return shortened(release)

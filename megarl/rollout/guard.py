"""Runs inside the server: turns away whoever does not know the run's token.

vLLM's own --api-key leaves the endpoints open that replace weights and call methods of the workers, and SGLang writes
its own into its log.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

TOKEN = "MEGARL_SERVER_TOKEN"
"""Environment variable that the server reads the token from."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RequireToken:
    """ASGI middleware: every request needs 'Authorization: Bearer <token>'."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ[TOKEN]}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 401."""
        if scope["type"] in ("http", "websocket") and not self._known(scope):
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"a token is needed"})
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        await self._app(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)

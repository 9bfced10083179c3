"""What a client makes of a server's answers, and of none."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from megarl.config.errors import TokenError
from megarl.rollout.engine import EngineError
from megarl.rollout.http_client import Client
from megarl.rollout.replica import ServerUnreachableError
from tests.ports import free_port

SECRET = "a-secret"


class Handler(BaseHTTPRequestHandler):
    """Answers with the status that the path names, to whoever knows the token."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Bearer {SECRET}"
        body = b'{"answer": 1}'
        self.send_response(int(self.path[1:]) if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def client(url: str, token: str) -> Client:
    return Client(url, token, connections=1, timeout_s=10, health_timeout_s=10)


def test_it_gets_in_with_the_token_alone(url: str) -> None:
    assert client(url, SECRET).get("/200") == {"answer": 1}
    for token in ("", "guessed"):
        with pytest.raises(TokenError, match=r"^engine\.urls=http://127.* answered 401, .* set the environment"):
            client(url, token).get("/200")


def test_waiting_for_a_server_ends_where_it_wants_another_token(url: str) -> None:
    with pytest.raises(TokenError):
        client(url, "guessed").up()
    assert not client(f"http://127.0.0.1:{free_port()}", SECRET).up()


def test_what_is_raised_shows_no_token(url: str) -> None:
    asked = client(url, SECRET)
    with pytest.raises(EngineError, match=r"/500 answered 500: .*answer") as refused:
        asked.get("/500")
    asked.close()
    with pytest.raises(ServerUnreachableError) as dropped:
        asked.get("/200")
    assert SECRET not in f"{refused.value!r}{dropped.value!r}"

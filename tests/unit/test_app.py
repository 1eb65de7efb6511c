"""Routes, and what is said about paths and methods that there are not."""

import asyncio
import signal
from typing import Any, cast

import httpx
import pytest
from starlette.routing import Router

from foreword.app import GOODBYE, close_after_drain, hot_routes, not_found, repair
from foreword.asgi import Receive, Scope, Send
from foreword.endpoints import Endpoint, Gateway


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Router:
    """The router, with endpoints that say which they are."""

    async def name(self: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"{self._route} {self._dialect}".encode()})

    monkeypatch.setattr(Endpoint, "__call__", name)
    return Router(hot_routes(cast("Gateway", None)), redirect_slashes=False, default=not_found)


def ask(app: Router, method: str, path: str) -> httpx.Response:
    async def asking() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sidecar") as client:
            return await client.request(method, path)

    return asyncio.run(asking())


@pytest.mark.parametrize(
    ("method", "path", "endpoint"),
    [
        ("POST", "/v1/messages", "messages messages"),
        ("POST", "/v1/messages?beta=true", "messages messages"),
        ("POST", "/v1/messages/count_tokens", "count_tokens messages"),
        ("POST", "/v1/chat/completions", "chat openai"),
        ("POST", "/v1/completions", "completions openai"),
        ("POST", "/v1/responses", "responses openai"),
        ("GET", "/v1/models", "models openai"),
        ("HEAD", "/v1/models", ""),
        ("GET", "/v1/models/tiny", "model openai"),
        ("GET", "/v1/models/org/tiny", "model openai"),
        ("DELETE", "/v1/models/tiny", "other openai"),
        ("HEAD", "/v1/models/tiny", ""),
        ("GET", "/v1/responses/resp_1", "other openai"),
        ("DELETE", "/v1/responses/resp_1", "other openai"),
        ("POST", "/v1/messages/batches", "other messages"),
        ("POST", "/v1/embeddings", "other openai"),
        ("POST", "/tokenize", "other openai"),
        ("POST", "/detokenize", "other openai"),
        ("GET", "/version", "other openai"),
        ("GET", "/slots", "other openai"),
        ("POST", "/slots/0", "other openai"),
    ],
)
def test_routes(app: Router, method: str, path: str, endpoint: str) -> None:
    answer = ask(app, method, path)
    assert answer.status_code == 200
    if method != "HEAD":
        assert answer.text == endpoint


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/messages", "POST"),
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_which_are_right(app: Router, method: str, path: str, allow: str) -> None:
    answer = ask(app, method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allow
    assert answer.headers["request-id"].startswith("req_")
    message = answer.json()["error"]["message"]
    assert path in message
    assert method in message
    assert ("type" in answer.json()) is (path == "/v1/messages"), (
        "Anthropic's form has a type beside the error"
    )


@pytest.mark.parametrize(
    ("path", "anthropic", "meant"),
    [
        ("/v1/v1/messages", True, "/v1/messages"),
        ("//v1/messages", True, "/v1/messages"),
        ("/v1/v1/chat/completions", False, "/v1/chat/completions"),
        ("/chat/completions", False, None),
        ("/admin", False, None),
    ],
)
def test_an_unknown_path_is_named(app: Router, path: str, anthropic: bool, meant: str | None) -> None:
    answer = ask(app, "POST", f"http://sidecar{path}")
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert path in message
    assert ("type" in answer.json()) is anthropic
    assert meant is None or f"did you mean {meant}?" in message


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1//v1/messages", "/v1/messages"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/v1/models", "/v1/models"),
        ("/v1/messages", None),
        ("/v1/models/", None),
        ("/v2/v1", None),
        ("/", None),
    ],
)
def test_repair(path: str, meant: str | None) -> None:
    assert repair(path) == meant


class Sidecar:
    """Notes when it was closed."""

    def __init__(self) -> None:
        self.closed: list[tuple[float, str]] = []

    def close(self, message: str) -> None:
        self.closed.append((asyncio.get_running_loop().time(), message))


def test_sigterm_stops_granian_at_once_and_exchanges_after_the_drain() -> None:
    sidecar = Sidecar()
    stopping: list[float] = []

    async def life() -> float:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: stopping.append(loop.time()))  # granian's
        close_after_drain(loop, cast("Any", sidecar), 0.2)
        begin = loop.time()
        signal.raise_signal(signal.SIGTERM)
        while not sidecar.closed:
            await asyncio.sleep(0.01)
        return begin

    begin = asyncio.run(life())
    ((closed, message),) = sidecar.closed
    assert len(stopping) == 1
    assert stopping[0] < closed
    assert closed - begin >= 0.2
    assert message == GOODBYE

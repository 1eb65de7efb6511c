"""Calls the stand-in engine's application as a server would, without one."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foreword.standin import Options, Standin

JSON = {"content-type": "application/json"}


@dataclass
class Answer:
    """What the application sent. ``whole``: it said that the body has ended."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    whole: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of each event; ``[DONE]`` as it is."""
        texts = [event.removeprefix("data: ") for event in self.body.decode().split("\n\n")[:-1]]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]


class Exchange:
    """One request under way. Setting ``leave`` is the client's leaving."""

    def __init__(self, app: Standin, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.answer = Answer()
        self.leave = asyncio.Event()
        self._app = app
        self._body = [body]
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", "1"),
        }

    async def run(self) -> Answer:
        await self._app(self._scope, self._receive, self._send)
        return self.answer

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.answer.parts.append(message["body"])
            self.answer.whole = not message["more_body"]


def standin(**options: Any) -> Standin:
    """An engine that is at once done with everything, in the captured engine's form."""
    made: dict[str, Any] = {"model": "tiny", "max_model_len": 65_536, "block_tokens": 32}
    made |= {"prefill_rate": 0, "decode_rate": 0}
    return Standin(Options(**(made | options)))


def exchange(app: Standin, path: str, body: Any = None, method: str = "POST", **headers: str) -> Exchange:
    """A request with a JSON body, or with exactly these bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Exchange(app, method, path, raw, JSON | named)


def call(app: Standin, path: str, body: Any = None, method: str = "POST", **headers: str) -> Answer:
    """One request, to its end."""

    async def run() -> Answer:
        return await asyncio.wait_for(exchange(app, path, body, method, **headers).run(), 10)

    return asyncio.run(run())


def chat(app: Standin, say: str = "</think>ok", **fields: Any) -> Any:
    """A short chat whose answer is told."""
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "vllm_xargs": {"say": say}}
    return call(app, "/v1/chat/completions", asked | fields)

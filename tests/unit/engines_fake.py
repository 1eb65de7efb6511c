"""Engines for tests: a table of answers, and templates as plain functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from foreword.engines.base import FetchError

Messages = Sequence[Mapping[str, str]]
Template = Callable[[Messages, Sequence[Mapping[str, Any]]], str | None]


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


def reply(value: object, status: int = 200, server: str = "uvicorn") -> Reply:
    return Reply(status, orjson.dumps(value), [(b"server", server.encode())])


Handler = Callable[[dict[str, Any]], Reply]


class FakeEngine:
    """A `Fetch`: answers by path, 404 for others, and nobody there when ``away``."""

    def __init__(self, answers: Mapping[str, Reply | Handler]) -> None:
        self.answers = dict(answers)
        self.away = False
        self.asked: list[str] = []

    async def __call__(self, method: str, path: str, body: bytes | None = None) -> Reply:
        self.asked.append(f"{method} {path}")
        if self.away:
            raise FetchError("connection refused")
        answer = self.answers.get(path, reply({"error": {"message": "Not Found"}}, 404))
        return answer if isinstance(answer, Reply) else answer(orjson.loads(body or b"null"))


def vllm(template: Template, *, model: str = "tiny", version: str = "0.32.0") -> FakeEngine:
    """vLLM: the same answers as the real one's, with ``template`` behind /tokenize (a token a character)."""

    def tokenize(question: dict[str, Any]) -> Reply:
        assert question["model"] == model
        text = template(question["messages"], question.get("tools", ()))
        if text is None:
            return reply({"error": {"message": "System message must be first", "code": 400}}, 400)
        return reply({"count": len(text), "max_model_len": 65536, "tokens": list(text.encode())})

    return FakeEngine(
        {
            "/v1/models": reply({"data": [{"id": model, "owned_by": "vllm", "max_model_len": 65536}]}),
            "/version": reply({"version": version}),
            "/health": Reply(headers=[(b"server", b"uvicorn")]),
            "/tokenize": tokenize,
        }
    )


def in_place(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools first, then every message where it stands."""
    head = "".join(orjson.dumps(tool).decode() for tool in tools)
    return (
        head + "".join(f"<{message['role']}>{message['content']}</>" for message in messages) + "<assistant>"
    )


def hoisting(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> str:
    """All system messages merged into the head, before the tools."""
    system = "\n".join(message["content"] for message in messages if message["role"] == "system")
    rest = [message for message in messages if message["role"] != "system"]
    return f"<system>{system}</>" + in_place(rest, tools)


def sinking(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> str:
    """Late system messages printed at the very end: every turn moves them."""
    late = [message for message in messages[1:] if message["role"] == "system"]
    rest = [*messages[:1], *(message for message in messages[1:] if message["role"] != "system")]
    return in_place([*rest, *late], tools)


def dropping(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> str:
    """Late system messages left out."""
    return in_place([*messages[:1], *(m for m in messages[1:] if m["role"] != "system")], tools)


def refusing(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """An error for a late system message."""
    return None if any(message["role"] == "system" for message in messages[1:]) else in_place(messages, tools)


def stripping(messages: Messages, tools: Sequence[Mapping[str, Any]]) -> str:
    """As an engine that takes the billing header out of the first system text."""
    first, *rest = messages
    content = first["content"]
    if content.startswith("x-anthropic-billing-header:"):
        content = content.partition("\n")[2]
    return in_place([{**first, "content": content}, *rest], tools)

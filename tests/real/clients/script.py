"""The engine that the agents talk to: it asks for one file to be read, then tells what the file says.

It speaks what vLLM speaks, chat and responses, and reports that all but the newest part of each prompt was cached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.http.engine import (
    END,
    Peer,
    Received,
    ScriptedEngine,
    chat_chunk,
    chunked,
    event,
    respond,
    stream_head,
)

Json = dict[str, Any]

NOTE = "The heron is blue and stands in the shallows."
"""What the file holds."""

FIRST_ANSWER = "note.txt speaks of a blue heron."
SECOND_ANSWER = "It stands in the shallows."
TITLE = "A note about a heron"


@dataclass(frozen=True)
class Usage:
    """What the engine reports of one request, in tokens."""

    prompt: int
    cached: int
    completion: int

    @classmethod
    def of(cls, number: int) -> Usage:
        """Of an agent's request, counted from 0."""
        return cls(20_000 + 1_000 * number, 16_000 + 1_000 * number, 20 + number)

    def chat(self) -> Json:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached, "created_cache_tokens": None},
        }

    def responses(self) -> Json:
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt + self.completion,
        }


@dataclass(frozen=True)
class FileTool:
    """How an agent's tool for reading a file is called."""

    name: str
    arguments: Json


class Conversation:
    """Answers as the script says, and keeps what the agent asked, side requests (titles and the like) apart."""

    def __init__(self, engine: ScriptedEngine, tool: FileTool) -> None:
        self._tool = tool
        self.asked: list[Json] = []
        self.side: list[Json] = []
        self.others: list[Received] = []
        """Everything that is no request for an answer."""
        engine.answer = self._answer

    def used(self) -> list[Usage]:
        return [Usage.of(number) for number in range(len(self.asked))]

    def _answer(self, peer: Peer, request: Received) -> None:
        path = request.target.partition("?")[0]
        if request.method != "POST" or path not in ("/v1/chat/completions", "/v1/responses"):
            self.others.append(request)
            peer.send(respond(404, {"error": {"message": "not here", "type": "NotFoundError", "code": 404}}))
            return
        body = request.json()
        responses = path == "/v1/responses"
        if self._is_side(body):
            self.side.append(body)
            text, call, usage = TITLE, None, Usage(100, 0, 5)
        else:
            usage = Usage.of(len(self.asked))
            self.asked.append(body)
            text, call = self._next(_items(body))
        if not body.get("stream"):
            assert not responses, "no agent asks for a whole answer of /v1/responses"
            peer.send(respond(200, _whole_chat(text, call, usage)))
            return
        peer.send(stream_head())
        for data in _responses(text, call, usage) if responses else _chat(text, call, usage):
            peer.send(chunked(data))
        peer.send(END)

    def _is_side(self, body: Json) -> bool:
        """Titles ask without tools; what Qwen Code asks for its memory begins with another system text."""
        if self._tool.name not in _tool_names(body):
            return True
        return bool(self.asked) and _items(body)[0] != _items(self.asked[0])[0]

    def _next(self, messages: list[Json]) -> tuple[str, FileTool | None]:
        results = sum(
            item.get("role") == "tool" or item.get("type") == "function_call_output" for item in messages
        )
        if not results:
            return "I will read it.", self._tool
        said = [item for item in messages if item.get("role") == "assistant"]
        answered = any(FIRST_ANSWER in json.dumps(item) for item in said)
        return (SECOND_ANSWER if answered else FIRST_ANSWER), None


def _items(body: Json) -> list[Json]:
    items: list[Json] = body.get("messages") or body["input"]
    return items


def _tool_names(body: Json) -> list[str]:
    return [tool.get("function", tool).get("name", "") for tool in body.get("tools") or []]


def _whole_chat(text: str, call: FileTool | None, usage: Usage) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if call is not None:
        function = {"name": call.name, "arguments": json.dumps(call.arguments)}
        message["tool_calls"] = [{"id": "chatcmpl-tool-1", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if call is None else "tool_calls"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], "usage": usage.chat()}


def _chat(text: str, call: FileTool | None, usage: Usage) -> Iterator[bytes]:
    yield event(chat_chunk({"role": "assistant", "content": ""}))
    for part in re.findall(r" ?[^ ]+", text):
        yield event(chat_chunk({"content": part}))
    if call is not None:
        head = {"id": "chatcmpl-tool-1", "type": "function", "index": 0, "function": {"name": call.name}}
        yield event(chat_chunk({"tool_calls": [head]}))
        arguments = json.dumps(call.arguments)
        for part in (arguments[:3], arguments[3:]):
            more = {"index": 0, "function": {"arguments": part}}
            yield event(chat_chunk({"content": None, "tool_calls": [more]}))
    yield event(chat_chunk({}, "stop" if call is None else "tool_calls"))
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    yield event({**head, "choices": [], "usage": usage.chat()})
    yield event("[DONE]")


def _responses(text: str, call: FileTool | None, usage: Usage) -> Iterator[bytes]:
    number = 0

    def send(kind: str, **data: Any) -> bytes:
        nonlocal number
        number += 1
        body = json.dumps({"type": kind, "sequence_number": number - 1, **data})
        return f"event: {kind}\ndata: {body}\n\n".encode()

    response: Json = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "in_progress",
    }
    yield send("response.created", response={**response, "output": []})
    part: Json = {"type": "output_text", "text": "", "annotations": []}
    message: Json = {"type": "message", "id": "msg_1", "role": "assistant"}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    yield send(
        "response.output_item.added", output_index=0, item={**message, "status": "in_progress", "content": []}
    )
    yield send("response.content_part.added", **at, part=part)
    yield send("response.output_text.delta", **at, delta=text)
    yield send("response.output_text.done", **at, text=text)
    yield send("response.content_part.done", **at, part={**part, "text": text})
    output = [{**message, "status": "completed", "content": [{**part, "text": text}]}]
    yield send("response.output_item.done", output_index=0, item=output[0])
    if call is not None:
        arguments = json.dumps(call.arguments)
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": call.name}
        added = {**item, "arguments": "", "status": "in_progress"}
        yield send("response.output_item.added", output_index=1, item=added)
        fc = {"item_id": "fc_1", "output_index": 1}
        yield send("response.function_call_arguments.delta", **fc, delta=arguments)
        yield send("response.function_call_arguments.done", **fc, arguments=arguments)
        output.append({**item, "arguments": arguments, "status": "completed"})
        yield send("response.output_item.done", output_index=1, item=output[1])
    completed = {**response, "status": "completed", "output": output, "usage": usage.responses()}
    yield send("response.completed", response=completed)

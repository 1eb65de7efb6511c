"""One run of the conversation through one sidecar, as the client sees it, beside the engine's own counters."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .conversation import BLOCK_TOKENS, CACHE_BLOCKS, INTERRUPTED, MODEL, Conversation, filler

Json = dict[str, Any]
_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_TIMEOUT = 60.0


class Broken(Exception):
    """Something answered otherwise than it must; the message says what."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request came to; lengths in tokens, times in seconds."""

    prompt: int
    reused: int
    ttft: float
    context: int
    """The context's size as the client counts it."""


def play_through(
    conversation: Conversation, sidecar: int, engine: int, progress: Callable[[int, Turn], None]
) -> list[Turn]:
    """Plays the whole conversation. Raises Broken, or OSError where a connection fails."""
    _post(engine, "/reset_prefix_cache", {})
    messages: list[Json] = []
    results: list[int | str] = []
    turns: list[Turn] = []
    for n, step in enumerate(conversation.steps):
        if n in INTERRUPTED:
            _somebody_else(engine, n)
        results_of = [_result(call, step.added) for call in results] or [{"type": "text", "text": step.added}]
        messages.append({"role": "user", "content": results_of})
        _post(engine, "/standin/script", {"next": {"say": step.say}})
        before = _counters(engine)
        answer = Answer()
        try:
            ttft = answer.read(_ask(sidecar, conversation.request(messages, n), conversation.session_id))
        except (KeyError, IndexError, ValueError) as error:
            raise Broken(f"the sidecar's stream is none of the Messages protocol: {error!r}") from error
        queries, hits = (now - then for now, then in zip(_counters(engine), before, strict=True))
        if not queries:
            raise Broken("the engine saw no prompt, though the sidecar answered")
        messages.append({"role": "assistant", "content": answer.blocks})
        results = [block["id"] for block in answer.blocks if block["type"] == "tool_use"]
        turns.append(Turn(queries, hits, ttft, sum(answer.usage.values())))
        progress(n, turns[-1])
    return turns


class Answer:
    """A Messages stream, put together as Claude Code does."""

    def __init__(self) -> None:
        self.blocks: list[Json] = []
        self.usage = dict.fromkeys(_USAGE, 0)
        self._input = ""

    def read(self, events: Iterator[tuple[float, Json]]) -> float:
        """Reads to the end and returns the time of the first token."""
        first, ended = None, False
        for at, event in events:
            kind = event.get("type")
            if kind == "error":
                raise Broken(f"the sidecar's stream ended in an error: {event.get('error')}")
            if kind == "message_start":
                self._count(event["message"].get("usage") or {})
            elif kind == "message_delta":
                self._count(event.get("usage") or {})
            elif kind == "content_block_start":
                self.blocks.append(dict(event["content_block"]))
                self._input = ""
            elif kind == "content_block_delta":
                first = at if first is None else first
                self._add(event["delta"])
            elif kind == "content_block_stop" and self.blocks[-1]["type"] == "tool_use":
                self.blocks[-1]["input"] = json.loads(self._input or "{}")
            ended = ended or kind == "message_stop"
        if first is None or not ended:
            raise Broken("the sidecar's stream ended early")
        return first

    def _count(self, usage: Json) -> None:
        """Claude Code's rule: a later value takes an earlier one's place if it is greater than 0."""
        for name in _USAGE:
            if (value := usage.get(name) or 0) > 0:
                self.usage[name] = value

    def _add(self, delta: Json) -> None:
        if delta["type"] == "input_json_delta":
            self._input += delta["partial_json"]
            return
        for name in ("text", "thinking", "signature"):
            if name in delta:
                self.blocks[-1][name] = self.blocks[-1].get(name, "") + delta[name]


def _result(call: int | str, text: str) -> Json:
    return {"tool_use_id": call, "type": "tool_result", "content": text}


def _ask(port: int, body: bytes, session_id: str) -> Iterator[tuple[float, Json]]:
    """Sends one request and yields its events, each with the seconds since it was sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    headers = {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": "demo",
        "x-app": "cli",
        "X-Claude-Code-Session-Id": session_id,
    }
    try:
        sent = time.monotonic()
        connection.request("POST", "/v1/messages?beta=true", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise Broken(
                f"the sidecar answered {response.status}: {response.read(500).decode(errors='replace')}"
            )
        while line := response.readline():
            if line.startswith(b"data:"):
                yield time.monotonic() - sent, json.loads(line[5:])
    except http.client.HTTPException as error:
        raise Broken(f"the sidecar's answer broke off: {error!r}") from error
    finally:
        connection.close()


def _somebody_else(engine: int, turn: int) -> None:
    """Another user's prompt, as large as the whole cache."""
    text = filler(f"somebody else {turn}", BLOCK_TOKENS * CACHE_BLOCKS * 4)
    message = {"role": "user", "content": text}
    script = {"say": "</think>ok"}
    _post(
        engine,
        "/v1/chat/completions",
        {"model": MODEL, "messages": [message], "max_tokens": 8, "vllm_xargs": script},
    )


def _counters(engine: int) -> tuple[int, int]:
    """Prompt tokens that the engine looked up so far, and found."""
    text = _request(engine, "GET", "/metrics", None).decode()
    found = dict.fromkeys(("queries", "hits"), 0)
    for line in text.splitlines():
        for name in found:
            if line.startswith(f"vllm:prefix_cache_{name}_total{{"):
                found[name] = int(float(line.rpartition(" ")[2]))
    return found["queries"], found["hits"]


def _post(port: int, path: str, value: Json) -> None:
    _request(port, "POST", path, json.dumps(value).encode())


def _request(port: int, method: str, path: str, body: bytes | None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    except http.client.HTTPException as error:
        raise Broken(f"the stand-in engine's answer broke off: {error!r}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise Broken(f"the stand-in engine answered {path} with {response.status}: {answer[:500]!r}")
    return answer

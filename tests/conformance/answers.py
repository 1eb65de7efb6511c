"""Answers for the scripted engine: what a test wants to be said, in an engine's own form."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.http.engine import (
    END,
    USAGE,
    Answer,
    Peer,
    Received,
    chat_chunk,
    chunked,
    event,
    respond,
    stream_head,
)

CAPTURES = Path(__file__).parent.parent / "fixtures" / "captures" / "vllm-0.32.0"


def recorded(name: str) -> bytes:
    """The head and body of a recorded answer. Paths in bodies were shortened, so a length is counted anew."""
    head, end, body = (CAPTURES / f"{name}.resp.txt").read_bytes().partition(b"\r\n\r\n")
    return re.sub(rb"(?<=content-length: )\d+", b"%d" % len(body), head) + end + body


def replays(name: str) -> Answer:
    """A real engine's answer, byte for byte."""
    raw = recorded(name)
    return lambda peer, _: peer.send(raw)


def replays_either(name: str) -> Answer:
    """A real engine's answer to the same request as a stream or in one piece, as it is asked for."""
    whole, stream = replays(name), replays(f"{name}_stream")

    def answer(peer: Peer, request: Received) -> None:
        (stream if request.json().get("stream") else whole)(peer, request)

    return answer


def in_turn(*answers: Answer) -> Answer:
    """The first answer for the first request, and so on; the last one stays."""
    waiting = list(answers)
    lock = threading.Lock()

    def answer(peer: Peer, request: Received) -> None:
        with lock:
            now = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        now(peer, request)

    return answer


def refuses(
    status: int,
    message: str,
    kind: str = "BadRequestError",
    headers: Iterable[tuple[str, str]] = (),
) -> Answer:
    """An error in vLLM's form."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    return lambda peer, _: peer.send(respond(status, {"error": error}, headers))


def streams(
    deltas: Iterable[dict[str, Any]],
    finish: str | None = "stop",
    usage: dict[str, Any] | None = USAGE,
) -> Answer:
    """A stream of these deltas. Without ``finish`` the body ends well, and the engine has stated no end."""
    events = [event(chat_chunk({"role": "assistant", "content": ""}))]
    events += [event(chat_chunk(delta)) for delta in deltas]
    if finish is not None:
        events.append(event(chat_chunk({}, finish)))
        if usage is not None:
            events.append(event({**chat_chunk({}), "choices": [], "usage": usage}))
        events.append(event("[DONE]"))

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        for data in events:
            peer.send(chunked(data))
        peer.send(END)

    return answer


def begins(text: str) -> Answer:
    """A stream that says ``text`` and then nothing more, without end."""

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        peer.send(chunked(event(chat_chunk({"role": "assistant", "content": ""}))))
        peer.send(chunked(event(chat_chunk({"content": text}))))
        peer.watch()
        peer.closed.wait(10)

    return answer


def breaks_off(text: str) -> Answer:
    """A stream that says ``text``; then the connection is reset."""

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        peer.send(chunked(event(chat_chunk({"role": "assistant", "content": ""}))))
        peer.send(chunked(event(chat_chunk({"content": text}))))
        peer.reset()
        # The engine's own reader keeps the socket open until its loop ends.
        raise ConnectionResetError

    return answer


def is_silent(peer: Peer, _: Received) -> None:
    """No answer at all, until the other side leaves."""
    peer.watch()
    peer.closed.wait(10)


def hangs_up(peer: Peer, _: Received) -> None:
    """The connection is closed without an answer."""
    peer.close()


def call(index: int, name: str, call_id: str) -> dict[str, Any]:
    """The delta that begins a tool call, as vLLM writes it."""
    function = {"id": call_id, "type": "function", "index": index, "function": {"name": name}}
    return {"content": None, "tool_calls": [function]}


def arguments(index: int, text: str) -> dict[str, Any]:
    """A delta with a piece of a call's arguments."""
    return {"content": None, "tool_calls": [{"index": index, "function": {"arguments": text}}]}


def pieces(text: str, length: int) -> Iterable[str]:
    """``text`` in pieces of ``length`` characters."""
    return (text[at : at + length] for at in range(0, len(text), length))

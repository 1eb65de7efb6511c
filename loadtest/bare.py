"""The server that Foreword stands on, by itself: what compare.py measures as the target `granian`.

An ASGI application that makes the rig's events itself, in engine-step bursts, and reads no engine: nothing is
translated or counted, and each event is one `send` that does not wait, as Foreword sends it. No relay under granian
takes less for an event, for it reads the event besides.

    python -m granian --interface asgi --loop uvloop --http 1 --no-ws loadtest.bare:application
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Message = Mapping[str, Any]
    Send = Callable[[Message], Awaitable[None]]

PAUSE_SECONDS = 0.25
"""Between the last stream's opening and the first step, as the rig's engine makes it: the reader looks at processes."""

CHUNK = (
    b'data: {"id":"chatcmpl-b268274b65f2de60","object":"chat.completion.chunk","created":1796008542,"model":"rig",'
    b'"choices":[{"index":0,"delta":{"content":"t=%018d s=%06d "},"logprobs":null,"finish_reason":null,'
    b'"token_ids":null}]}\n\n'
)
LAST = b"data: [DONE]\n\n"
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


@dataclass
class Stream:
    """One reader's answer."""

    send: Send
    done: asyncio.Future[None]

    def event(self, seq: int) -> None:
        """Sends one event. The server's queue has room: a paced reader keeps up."""
        data = CHUNK % (time.clock_gettime_ns(time.CLOCK_MONOTONIC), seq)
        step = self.send({"type": "http.response.body", "body": data, "more_body": True}).__await__()
        try:
            next(step)
        except StopIteration:
            return
        raise RuntimeError("a send had to wait")


@dataclass
class Steps:
    """Streams that wait for each other, and then get their events in steps."""

    waiting: list[Stream] = field(default_factory=list)

    def join(self, stream: Stream, gate: int, rate: float, events: int) -> None:
        """Adds a stream; the one that opens the gate begins the steps of all."""
        self.waiting.append(stream)
        if len(self.waiting) >= gate:
            loop = asyncio.get_running_loop()
            streams, self.waiting = self.waiting, []
            loop.call_later(PAUSE_SECONDS, self._step, streams, loop.time() + PAUSE_SECONDS, 1, rate, events)

    def _step(self, streams: list[Stream], due: float, seq: int, rate: float, events: int) -> None:
        if seq == events:
            for stream in streams:
                stream.done.set_result(None)
            return
        for stream in streams:
            stream.event(seq)
        due += 1 / rate
        asyncio.get_running_loop().call_at(due, self._step, streams, due, seq + 1, rate, events)


STEPS = Steps()


async def application(
    scope: Mapping[str, Any], receive: Callable[[], Awaitable[Message]], send: Send
) -> None:
    """Answers every POST with the stream that its header `x-rig` asks for, all else with 200."""
    if scope["type"] != "http":
        return
    if scope["method"] != "POST":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    while (await receive()).get("more_body"):
        pass
    asked = next((value.decode() for name, value in scope["headers"] if name == b"x-rig"), "")
    plan = {"gate": "1", "rate": "50", "events": "500"} | dict(parse_qsl(asked))
    stream = Stream(send, asyncio.get_running_loop().create_future())
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    stream.event(0)
    STEPS.join(stream, int(plan["gate"]), float(plan["rate"]), int(plan["events"]))
    await stream.done
    await send({"type": "http.response.body", "body": LAST, "more_body": False})

"""Event streams of both dialects, as far as a load test looks at them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Event:
    """One event of an answer."""

    text: str = ""
    """What goes back into the conversation: no reasoning."""
    carries: bool = False
    """Whether a user sees something of it, be it reasoning."""
    end: bool = False
    """The stated end of the answer: without one it broke off."""
    error: str | None = None


class Splitter:
    """Cuts bytes into events, whatever the pieces in which they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that are complete now. Raises ValueError for data that is no JSON."""
        *frames, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for frame in frames:
            lines = [line[5:].strip() for line in frame.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield _event(b"\n".join(lines))


def _event(payload: bytes) -> Event:
    if payload == b"[DONE]":
        return Event(end=True)
    message: dict[str, Any] = json.loads(payload)
    if error := message.get("error"):
        return Event(error=str(error.get("type") if isinstance(error, dict) else error))
    if message.get("type") == "message_stop":
        return Event(end=True)
    others: tuple[str, ...]
    if "choices" in message:
        deltas: list[dict[str, Any]] = [choice.get("delta") or {} for choice in message["choices"]]
        shown, others = "content", ("reasoning_content", "reasoning", "tool_calls")
    else:
        deltas = [message["delta"]] if message.get("type") == "content_block_delta" else []
        shown, others = "text", ("thinking", "partial_json")
    text = "".join(delta.get(shown) or "" for delta in deltas)
    return Event(text, bool(text) or any(delta.get(name) for delta in deltas for name in others))

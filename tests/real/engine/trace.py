"""The conversation that the measurements use: an agent's twelve requests, each of which extends the one before it.

It is written once and rendered in both dialects. Texts are drawn from a fixed list of words with a fixed seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

REQUESTS = 12
TOOLS = 12

_WORDS = """
open file and return the value of each line in order class self name index path error data type list key
module test import string buffer count write read default result object with from if not none for while
"""


class _Filler:
    def __init__(self) -> None:
        self._random = random.Random(12)
        self._words = _WORDS.split()

    def words(self, count: int) -> str:
        return " ".join(self._random.choices(self._words, k=count))

    def lines(self, count: int) -> str:
        return "\n".join(self.words(12) + "." for _ in range(count))


@dataclass(frozen=True)
class Exchange:
    """What one request adds: the agent's last step, if there is one, and what the user's side says to it."""

    step: str
    """The assistant's text."""
    path: str | None
    """The file that the step reads, if it calls the tool."""
    said: str
    """The tool's result if ``path``, else the user's words."""


@dataclass(frozen=True)
class Conversation:
    system: str
    tools: list[tuple[str, str]]
    exchanges: list[Exchange]


def conversation() -> Conversation:
    filler = _Filler()
    tools = [(f"tool_{number}", filler.lines(10)) for number in range(TOOLS)]
    system = "You are an agent that works on a code base.\n\n" + filler.lines(120)
    exchanges = [Exchange("", None, filler.lines(40))]
    for number in range(1, REQUESTS):
        path = f"src/{number}.py" if number % 2 else None
        exchanges.append(Exchange(filler.lines(30), path, filler.lines(60)))
    return Conversation(system, tools, exchanges)


_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}

Late = Callable[[int], str]
"""The text of a late system message after the user's side of an exchange, by its number."""


def chat(talk: Conversation, requests: int, system: object, late: Late | None = None) -> Json:
    """Request number ``requests`` of the conversation for /v1/chat/completions; ``system`` as its content."""
    messages: list[Json] = [{"role": "system", "content": system}]
    for number, exchange in enumerate(talk.exchanges[:requests]):
        if number:
            message: Json = {"role": "assistant", "content": exchange.step}
            if exchange.path is not None:
                arguments = json.dumps({"path": exchange.path})
                function = {"name": "tool_0", "arguments": arguments}
                message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
            messages.append(message)
        if exchange.path is not None:
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": exchange.said})
        else:
            messages.append({"role": "user", "content": exchange.said})
        if late is not None:
            messages.append({"role": "system", "content": late(number)})
    tools = [
        {"type": "function", "function": {"name": name, "description": description, "parameters": _SCHEMA}}
        for name, description in talk.tools
    ]
    return {"model": "tiny", "messages": messages, "tools": tools, "max_tokens": 1, "temperature": 0}


def messages(talk: Conversation, requests: int, system: object, late: Late | None = None) -> Json:
    """The same for /v1/messages, in the order of keys that Claude Code has."""
    turns: list[Json] = []
    for number, exchange in enumerate(talk.exchanges[:requests]):
        if number:
            step: list[Json] = [{"type": "text", "text": exchange.step}]
            if exchange.path is not None:
                call = {"type": "tool_use", "id": f"call_{number}", "name": "tool_0"}
                step.append({**call, "input": {"path": exchange.path}})
            turns.append({"role": "assistant", "content": step})
        if exchange.path is not None:
            said: Json = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": exchange.said}
        else:
            said = {"type": "text", "text": exchange.said}
        if requests - 1 == number:
            said["cache_control"] = {"type": "ephemeral"}  # moves on with every request
        turns.append({"role": "user", "content": [said]})
        if late is not None:
            turns.append({"role": "system", "content": late(number)})
    tools = [
        {"name": name, "description": description, "input_schema": _SCHEMA}
        for name, description in talk.tools
    ]
    return {"model": "tiny", "messages": turns, "system": system, "tools": tools, "max_tokens": 1}


def headers() -> Iterator[str]:
    """Billing headers as an agent sends them, each with another cch."""
    numbers = random.Random(5)
    while True:
        cch = f"{numbers.randrange(16**5):05x}"
        yield f"x-anthropic-billing-header: cc_version=2.1.116.fcf; cc_entrypoint=cli; cch={cch};"

"""Conversations as coding agents hold them, in two dialects, with the pieces that a template prints of them.

A conversation is kept in a form of its own. Rendering it gives a request's body and, beside it, the ordered list of
its pieces: what is printed, from where in the body, and what it is to the prompt. Every text is unique.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Dialect = Literal["messages", "chat"]
Order = Literal["tools-first", "system-first"]


class Piece(NamedTuple):
    """One printed part. ``text`` is unique in all conversations, but for repeats of the same piece."""

    path: str
    cls: str
    text: str


@dataclass
class User:
    """What a person says: one text, or several blocks."""

    texts: list[str]


@dataclass
class Note:
    """A system message inside the conversation."""

    text: str


@dataclass
class Call:
    id: str
    name: str
    path: str


@dataclass
class Answer:
    thinking: str | None
    text: str | None
    calls: list[Call] = field(default_factory=list)


@dataclass
class Results:
    """What tools gave back, one text a call, and what stands behind them in the same message."""

    results: list[tuple[str, str]]
    texts: list[str] = field(default_factory=list)


Turn = User | Note | Answer | Results


_WORDS = ("open", "café", "read", "the", "file", "a\nline", '"quoted"', "of", "it")


class Words:
    """Unique texts of a wanted length."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._numbers = itertools.count()

    def text(self, least: int, most: int) -> str:
        mark = f"t{next(self._numbers)}"
        size = self._rng.randint(least, most)
        words = self._rng.choices(_WORDS, k=size // 4)
        return f"{mark} {' '.join(words)}"[: max(size, len(mark))].rstrip()


@dataclass
class Conversation:
    dialect: Dialect
    tools: list[tuple[str, str]]
    """Names and descriptions."""
    system: list[str]
    turns: list[Turn]
    header: str | None = None
    joined: bool = False
    """Whether the header stands in one string with the system text."""

    def copy(self) -> Conversation:
        return copy.deepcopy(self)

    # ---- the body

    def body(self) -> dict[str, Any]:
        return self._messages_body() if self.dialect == "messages" else self._chat_body()

    def _system_content(self) -> Any:
        header = [] if self.header is None else [self.header]
        if self.joined:
            return "\n".join([*header, "\n\n".join(self.system)])
        return [{"type": "text", "text": text} for text in [*header, *self.system]]

    def _messages_body(self) -> dict[str, Any]:
        messages = [entry for turn in self.turns for entry in _of_messages(turn)]
        tools = [
            {
                "name": name,
                "description": text,
                "input_schema": _SCHEMA,
                "cache_control": {"type": "ephemeral"},
            }
            for name, text in self.tools
        ]
        return {"system": self._system_content(), "tools": tools, "messages": messages}

    def _chat_body(self) -> dict[str, Any]:
        head = [{"role": "system", "content": self._system_content()}]
        messages = head + [entry for turn in self.turns for entry in _of_chat(turn)]
        tools = [
            {"type": "function", "function": {"name": name, "description": text, "parameters": _SCHEMA}}
            for name, text in self.tools
        ]
        return {"messages": messages, "tools": tools}

    # ---- the pieces

    def pieces(self, order: Order, *, header: bool) -> list[Piece]:
        """In the order of the template. ``header``: whether the billing header reaches the engine."""
        tools = [Piece(f"tools[{n}]", "tools", f"{name} {text}") for n, (name, text) in enumerate(self.tools)]
        system = list(self._system_pieces(header=header))
        head = tools + system if order == "tools-first" else system + tools
        return head + list(self._turn_pieces())

    def _system_pieces(self, *, header: bool) -> Iterator[Piece]:
        place = "system" if self.dialect == "messages" else "messages[0].content"
        first = 0
        if self.header is not None:
            first = 1
            if header:
                yield Piece(place if self.joined else f"{place}[0]", "header", self.header)
        if self.joined:
            yield Piece(place, "system", "\n\n".join(self.system))
            return
        for n, text in enumerate(self.system):
            yield Piece(f"{place}[{n + first}]", "system", text)

    def _turn_pieces(self) -> Iterator[Piece]:
        numbered: list[tuple[int, Turn, int, list[tuple[str, str]]]] = []
        at = 0 if self.dialect == "messages" else 1
        for nth, turn in enumerate(self.turns):
            count, parts = _parts_of_messages(turn) if self.dialect == "messages" else _parts_of_chat(turn)
            numbered.append((nth, turn, at, parts))
            at += count
        answers = [nth for nth, turn in enumerate(self.turns) if isinstance(turn, Answer)]
        last_answer = answers[-1] if answers else -1
        for nth, turn, at, parts in numbered:
            cls = "history" if nth <= last_answer else "last-turn"
            if nth == self.first_user():
                cls = "first-user"
            if isinstance(turn, Note):
                cls = "late-system"
            for part, text in parts:
                offset, _, rest = part.partition("|")
                yield Piece(f"messages[{at + int(offset)}]{rest}", cls, text)

    def first_user(self) -> int:
        return next(nth for nth, turn in enumerate(self.turns) if isinstance(turn, User))


_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


def _blocks(texts: list[str]) -> Any:
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _of_messages(turn: Turn) -> Iterator[dict[str, Any]]:
    match turn:
        case User(texts):
            yield {"role": "user", "content": _blocks(texts)}
        case Note(text):
            yield {"role": "system", "content": text}
        case Answer(thinking, text, calls):
            content: list[dict[str, Any]] = []
            if thinking is not None:
                content.append({"type": "thinking", "thinking": thinking, "signature": ""})
            if text is not None:
                content.append({"type": "text", "text": text})
            content += [
                {"type": "tool_use", "id": call.id, "name": call.name, "input": {"path": call.path}}
                for call in calls
            ]
            yield {"role": "assistant", "content": content}
        case Results(results, texts):
            blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in results]
            yield {"role": "user", "content": blocks + [{"type": "text", "text": text} for text in texts]}


def _of_chat(turn: Turn) -> Iterator[dict[str, Any]]:
    match turn:
        case User(texts):
            yield {"role": "user", "content": _blocks(texts)}
        case Note(text):
            yield {"role": "system", "content": text}
        case Answer(thinking, text, calls):
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if thinking is not None:
                message["reasoning"] = thinking
            if calls:
                message["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": f'{{"path": "{call.path}"}}'},
                    }
                    for call in calls
                ]
            yield message
        case Results(results, texts):
            for call_id, text in results:
                yield {"role": "tool", "tool_call_id": call_id, "content": text}
            if texts:
                yield {"role": "user", "content": _blocks(texts)}


def _parts_of_texts(texts: list[str], offset: int = 0, first: int = 0) -> list[tuple[str, str]]:
    if len(texts) == 1 and first == 0:
        return [(f"{offset}|.content", texts[0])]
    return [(f"{offset}|.content[{first + n}]", text) for n, text in enumerate(texts)]


def _parts_of_messages(turn: Turn) -> tuple[int, list[tuple[str, str]]]:
    """How many messages a turn is, and its parts: `message|path within`, text."""
    match turn:
        case User(texts):
            return 1, _parts_of_texts(texts)
        case Note(text):
            return 1, [("0|.content", text)]
        case Answer(thinking, text, calls):
            said = [thinking, text, *(f"{call.name} {call.path}" for call in calls)]
            present = [piece for piece in said if piece is not None]
            return 1, [(f"0|.content[{n}]", piece) for n, piece in enumerate(present)]
        case Results(results, texts):
            return 1, [
                (f"0|.content[{n}]", text) for n, text in enumerate([*(text for _, text in results), *texts])
            ]


def _parts_of_chat(turn: Turn) -> tuple[int, list[tuple[str, str]]]:
    match turn:
        case Answer(thinking, text, calls):
            parts = [] if thinking is None else [("0|.reasoning", thinking)]
            parts += [] if text is None else [("0|.content", text)]
            return 1, parts + [
                (f"0|.tool_calls[{n}]", f"{call.name} {call.path}") for n, call in enumerate(calls)
            ]
        case Results(results, texts):
            parts = [(f"{n}|.content", text) for n, (_, text) in enumerate(results)]
            if texts:
                parts += _parts_of_texts(texts, offset=len(results))
            return len(results) + bool(texts), parts
        case _:
            return _parts_of_messages(turn)

"""What vLLM's reasoning parser and tool parser make of an answer, token by token and as a whole."""

import codecs
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from . import tokens

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*')
_CALLS = re.compile(f"{tokens.CALL}(.*?)(?:{tokens.CALL_END}|$)", re.DOTALL)


@dataclass(slots=True)
class Delta:
    """What one token adds. ``call`` counts tool calls; a ``name`` opens one and ``text`` goes on with its arguments."""

    kind: Literal["reasoning", "content", "name", "arguments"]
    text: str
    call: int = 0


class Parser:
    """Reads an answer's tokens in order.

    ``thinking``: everything is reasoning until it is closed; ``tools``: calls are told as such; ``raw``: everything is
    content, markers too.
    """

    def __init__(self, *, thinking: bool, tools: bool, raw: bool = False) -> None:
        self.calls = 0
        self.reasoning_tokens = 0
        self._state: Literal["reasoning", "content", "call", "after"] = "reasoning" if thinking else "content"
        self._tools = tools
        self._raw = raw
        self._arguments: _Arguments | None = None
        self._held = ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: bytes) -> list[Delta]:
        """What this token adds: nothing for the markers and for a part of a character."""
        mark = tokens.special_text(token)
        if mark is None:
            return self._text(self._utf8.decode(tokens.plain(token)))
        broken = self._utf8.decode(b"", final=True)
        return (self._text(broken) if broken else []) + self._mark(mark)

    def _mark(self, mark: str) -> list[Delta]:
        if self._raw:
            return self._text(mark)
        if self._state == "reasoning":
            if mark == tokens.THINK_END:
                self._state = "content"
            return [] if mark in (tokens.THINK, tokens.THINK_END) else self._text(mark)
        if mark in (tokens.THINK, tokens.THINK_END):
            return []
        if self._tools and mark == tokens.CALL and self._state != "call":
            self._state, self._arguments, self._held = "call", None, ""
            return []
        if self._state == "call" and mark == tokens.CALL_END:
            self._state = "after"
            return self._rest_of_broken_call()
        return self._text(mark)

    def _text(self, text: str) -> list[Delta]:
        if self._state == "reasoning":
            self.reasoning_tokens += 1
            return [Delta("reasoning", text)] if text else []
        if self._state == "content":
            return [Delta("content", text)] if text else []
        if self._state == "after":  # text after a call is dropped
            return []
        if self._arguments is not None:
            return self._argue(text)
        self._held += text
        if (found := _NAME.match(self._held)) is None:
            return []
        self.calls += 1
        self._arguments = _Arguments()
        named = Delta("name", json.loads(f'"{found[1]}"'), self.calls - 1)
        return [named, *self._argue(self._held[found.end() :])]

    def _argue(self, text: str) -> list[Delta]:
        assert self._arguments is not None  # noqa: S101 - the callers' state
        said = self._arguments.feed(text)
        return [Delta("arguments", said, self.calls - 1)] if said else []

    def _rest_of_broken_call(self) -> list[Delta]:
        rest = self._arguments.rest_if_broken() if self._arguments else ""
        return [Delta("arguments", rest, self.calls - 1)] if rest else []


class _Arguments:
    """Finds the end of a JSON value that comes in pieces."""

    def __init__(self) -> None:
        self._value = ""
        self._after = ""
        self._depth = 0
        self._quoted = self._escaped = self._done = False

    def feed(self, text: str) -> str:
        """The part of ``text`` that belongs to the value."""
        end = next((n for n, char in enumerate(text) if self._ends(char)), len(text))
        self._value += text[:end]
        self._after += text[end:]
        return text[:end]

    def _ends(self, char: str) -> bool:
        """Whether the value ended before this character."""
        if self._done or (not self._quoted and self._depth == 0 and char == "}"):
            self._done = True
            return True
        if self._quoted:
            self._quoted = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        self._done = not self._quoted and self._depth == 0 and char in '"}]'
        return False

    def rest_if_broken(self) -> str:
        """What vLLM streams on when the arguments are no JSON: all that stands before the end of the call."""
        try:
            json.loads(self._value)
        except ValueError:
            return self._after.strip()
        return ""


@dataclass(slots=True)
class Message:
    """An answer as a whole."""

    content: str | None
    reasoning: str | None
    calls: list[tuple[str, str]]
    reasoning_tokens: int


def whole(answer: Iterable[bytes], *, thinking: bool, tools: bool) -> Message:
    """The message of an answer that is not streamed. A call that is not whole JSON leaves all of it as content."""
    parser = Parser(thinking=thinking, tools=False)
    said: dict[str, str] = {"reasoning": "", "content": ""}
    for token in answer:
        for delta in parser.feed(token):
            said[delta.kind] += delta.text
    calls = _calls(said["content"]) if tools else []
    content = said["content"]
    if calls:
        content = content.partition(tokens.CALL)[0]
        content = content if content.strip() else ""
    return Message(content or None, said["reasoning"] or None, calls, parser.reasoning_tokens)


def _calls(content: str) -> list[tuple[str, str]]:
    try:
        calls = [json.loads(text) for text in _CALLS.findall(content)]
        return [(str(call["name"]), json.dumps(call["arguments"], ensure_ascii=False)) for call in calls]
    except (ValueError, TypeError, KeyError):
        return []

"""What coding agents send: conversations that grow turn by turn, as Claude Code and opencode have them on the wire.

Nothing here knows of a network or a clock. A session gives one request after the other and is told what became of it;
the same seed and the same answers give the same bytes. Texts are filler, keys and their order are the clients' own.
"""

from __future__ import annotations

import copy
import json
import random
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = dict[str, Any]

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
BYTES_PER_TOKEN = 4
"""What a client assumes when it looks at its window: close enough for filler text."""

_PHRASES = (
    "socket parser index branch commit worker handler module schema record buffer token prompt cursor event config "
    "value retry header offset session layer adapter queue thread lookup render update delete insert select merge"
)
_WORDS = _PHRASES.split()
_TOOLS = ("Agent", "Bash", "Edit", "Glob", "Grep", "Read", "Skill", "TodoWrite", "WebFetch", "Write")


@dataclass(frozen=True)
class Habits:
    """How users and their agents behave. Shares are 0..1, times seconds, sizes tokens."""

    system_tokens: int = 6_000
    tools_tokens: int = 9_000
    question_tokens: int = 300
    result_tokens: int = 1_500
    """Mean of what a tool gives back; single ones are up to four times as long."""
    tool_turns: int = 4
    """Mean of the tool calls that follow a question."""
    questions: int = 8
    """After so many the user closes the conversation."""
    think_seconds: float = 20.0
    """Mean pause before a user's next question."""
    tool_seconds: float = 1.0
    """Mean time that a tool takes."""
    leave_share: float = 0.03
    """Answers that the user stops in mid-stream."""
    subagent_share: float = 0.1
    """Questions for which a sub-agent is sent out (Claude Code)."""
    window_tokens: int = 200_000
    compact_share: float = 0.8
    """Of the window: above it the client compacts."""
    max_tokens: int = 32_000
    model: str = "claude-opus"
    header: bool = True
    """Whether Claude Code sends its billing header, whose ``cch`` is another one in each request."""


_READERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": {"1": True, "0": False, "on": True, "off": False}.__getitem__,
}


def habits(environment: Mapping[str, str]) -> Habits:
    """The habits that LOAD_ variables ask for. Raises ValueError with the variable's name."""
    given: dict[str, Any] = {}
    for each in fields(Habits):
        name = f"LOAD_{each.name.upper()}"
        if (text := environment.get(name)) is None:
            continue
        try:
            given[each.name] = _READERS[str(each.type)](text)
        except (KeyError, ValueError):
            raise ValueError(f"{name} must be of type {each.type}, not {text!r}") from None
    return Habits(**given)


@dataclass(frozen=True)
class Request:
    """One request of a session."""

    kind: str
    """question, tool, compact: for statistics."""
    path: str
    headers: dict[str, str]
    body: bytes
    pause: float
    """Seconds that user or tool take before it is sent."""
    leave_after: int | None
    """Events after which the user stops the answer; None: never."""


@dataclass(frozen=True)
class Answer:
    """What came back: the text of the answer, as far as it was read."""

    text: str
    complete: bool = True


@dataclass
class Session(ABC):
    """One conversation with one agent."""

    seed: int
    habits: Habits = field(default_factory=Habits)

    path = ""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        self._messages: list[Json] = []
        self._asked = 0
        self._tools_left = 0
        self._compacting = False
        self._subagents: list[Session] = []
        self._prepare()
        self._ask()

    @abstractmethod
    def _prepare(self) -> None:
        """Makes what stays the same in all requests."""

    @abstractmethod
    def _body(self) -> Json:
        """The next request's body, of what was said so far."""

    @abstractmethod
    def _headers(self) -> dict[str, str]:
        """The client's own headers."""

    @abstractmethod
    def _user(self, text: str) -> Json:
        """A message of the user."""

    @abstractmethod
    def _call(self, text: str, call_id: str, name: str, arguments: Json, result: str) -> list[Json]:
        """An answer that calls a tool, and the tool's result."""

    @abstractmethod
    def _said(self, text: str) -> Json:
        """An answer without a call."""

    @property
    def done(self) -> bool:
        """Whether the user has closed the conversation."""
        return self._asked > self.habits.questions

    @property
    def tokens(self) -> int:
        """The length of the conversation as its client guesses it."""
        return len(compact(self._body())) // BYTES_PER_TOKEN

    def next(self) -> Request:
        """The next request. The session waits for `answered` before it has another one."""
        kind = "compact" if self._compacting else "tool" if self._mid_turn() else "question"
        mean = self.habits.tool_seconds if kind == "tool" else self.habits.think_seconds
        pause = 0.0 if self._compacting or not mean else min(self._random.expovariate(1 / mean), 10 * mean)
        leaves = not self._compacting and self._random.random() < self.habits.leave_share
        after = self._random.randint(3, 40) if leaves else None
        return Request(kind, self.path, self._headers(), compact(self._body()), pause, after)

    def answered(self, answer: Answer) -> None:
        """Takes the answer into the conversation, and goes on: with a tool, a question, a compaction."""
        if self._compacting:
            self._compacting = False
            self._messages = [self._user(f"This session continues an earlier one. Summary:\n{answer.text}")]
            self._asked += 1
            self._tools_left = 0
            return
        if not answer.complete:
            if answer.text:
                self._messages.append(self._said(answer.text))
            self._tools_left = 0
            self._ask("[Request interrupted by user] ")
        elif self._tools_left:
            self._tools_left -= 1
            name = self._random.choice(_TOOLS)
            call_id = f"toolu_{self._random.getrandbits(64):016x}"
            size = min(
                int(self._random.expovariate(1.0) * self.habits.result_tokens), 4 * self.habits.result_tokens
            )
            arguments = {"file_path": f"/src/{self._word()}.py", "limit": self._random.randint(1, 2000)}
            self._messages += self._call(answer.text, call_id, name, arguments, self._text(size + 8))
        else:
            self._messages.append(self._said(answer.text or "Done."))
            self._ask()
        if self.tokens > self.habits.compact_share * self.habits.window_tokens:
            self._compacting = True
            if self._messages[-1]["role"] != "user":
                self._messages.append(self._user("Go on."))
            self._messages.append(self._said("Understood."))
            self._messages.append(self._user("Summarise this conversation so that it can go on without it."))

    def failed(self) -> None:
        """The request failed for good: the user closes the conversation."""
        self._asked = self.habits.questions + 1

    def subagents(self) -> list[Session]:
        """Sessions that this one has started since it was last asked; they run beside it."""
        started, self._subagents = self._subagents, []
        return started

    def _mid_turn(self) -> bool:
        last = self._messages[-1]
        return last["role"] == "tool" or (
            isinstance(last["content"], list)
            and any(part["type"] == "tool_result" for part in last["content"])
        )

    def _ask(self, before: str = "") -> None:
        self._asked += 1
        self._tools_left = (
            round(self._random.expovariate(1 / self.habits.tool_turns)) if self.habits.tool_turns else 0
        )
        self._messages.append(self._user(before + self._text(self.habits.question_tokens)))

    def _word(self) -> str:
        return self._random.choice(_WORDS)

    def _text(self, tokens: int) -> str:
        words: list[str] = []
        length = 0
        while length < tokens * BYTES_PER_TOKEN:
            words.append(self._word())
            length += len(words[-1]) + 1
        return " ".join(words)

    def _tool_schemas(self) -> list[Json]:
        each = self.habits.tools_tokens // len(_TOOLS)
        return [
            {
                "name": name,
                "description": self._text(each),
                "input_schema": {
                    "type": "object",
                    "properties": {"file_path": {"type": "string"}, "limit": {"type": "number"}},
                    "required": ["file_path"],
                },
            }
            for name in _TOOLS
        ]


@dataclass
class ClaudeCode(Session):
    """Claude Code on /v1/messages: header, moving cache_control, sub-agents."""

    parent: str | None = None
    """The session id of the agent that sent this one out."""

    path = MESSAGES

    def _prepare(self) -> None:
        fixed = random.Random("claude-code")
        self._random, own = fixed, self._random
        # Tools and the main prompt are the same for all users; a sub-agent has its own.
        self._tools = self._tool_schemas()
        if self.parent:
            self._tools = self._tools[1:6]
        self._main = ("You are a sub-agent. " if self.parent else "") + self._text(self.habits.system_tokens)
        self._random = own
        self._agent = f"{own.getrandbits(64):016x}"
        self._device = f"{own.getrandbits(256):064x}"

    def answered(self, answer: Answer) -> None:
        asked = self._asked
        super().answered(answer)
        if not self.parent and self._asked > asked and self._random.random() < self.habits.subagent_share:
            habits = replace(self.habits, questions=1, think_seconds=0.0, leave_share=0.0)
            self._subagents.append(ClaudeCode(self._random.getrandbits(32), habits, self.id))

    def _headers(self) -> dict[str, str]:
        headers = {
            "x-app": "cli",
            "user-agent": "claude-cli/2.1.116 (external, cli)",
            "anthropic-version": "2023-06-01",
            "x-claude-code-session-id": self.parent or self.id,
        }
        return headers | ({"x-claude-code-agent-id": self._agent} if self.parent else {})

    def _body(self) -> Json:
        system: list[Json] = []
        if self.habits.header:
            mark = " cc_is_subagent=true;" if self.parent else ""
            cch = f"{self._random.getrandbits(20):05x}"
            text = f"x-anthropic-billing-header: cc_version=2.1.116.fcf; cc_entrypoint=cli; cch={cch};{mark}"
            system.append({"type": "text", "text": text})
        cached = {"cache_control": {"type": "ephemeral"}}
        identity = "You are Claude Code, Anthropic's official CLI for Claude."
        system += [{"type": "text", "text": text} | cached for text in (identity, self._main)]
        messages = copy.copy(self._messages)
        # The mark moves: only the last block of the last message has it.
        last = copy.deepcopy(messages[-1])
        last["content"][-1] |= cached
        messages[-1] = last
        user = {"device_id": self._device, "account_uuid": "", "session_id": self.parent or self.id}
        return {
            "model": self.habits.model,
            "messages": messages,
            "system": system,
            "tools": self._tools,
            "metadata": {"user_id": json.dumps(user, separators=(",", ":"))},
            "max_tokens": self.habits.max_tokens,
            "stream": True,
        }

    def _user(self, text: str) -> Json:
        return {"role": "user", "content": [{"type": "text", "text": text}]}

    def _said(self, text: str) -> Json:
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}

    def _call(self, text: str, call_id: str, name: str, arguments: Json, result: str) -> list[Json]:
        said = [{"type": "text", "text": text}] if text else []
        call = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
        given = {"type": "tool_result", "tool_use_id": call_id, "content": result}
        return [{"role": "assistant", "content": [*said, call]}, {"role": "user", "content": [given]}]


@dataclass
class OpenCode(Session):
    """opencode on /v1/chat/completions."""

    path = CHAT

    def _prepare(self) -> None:
        fixed = random.Random("opencode")
        self._random, own = fixed, self._random
        self._tools = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"].lower(),
                    "description": tool["description"],
                    "parameters": tool["input_schema"],
                },
            }
            for tool in self._tool_schemas()
        ]
        self._main = self._text(self.habits.system_tokens)
        self._random = own

    def _headers(self) -> dict[str, str]:
        return {"user-agent": "opencode/1.18.33", "x-session-id": self.id, "x-session-affinity": self.id}

    def _body(self) -> Json:
        return {
            "model": self.habits.model,
            "max_tokens": self.habits.max_tokens,
            "messages": [{"role": "system", "content": self._main}, *self._messages],
            "tools": self._tools,
            "tool_choice": "auto",
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _user(self, text: str) -> Json:
        return {"role": "user", "content": text}

    def _said(self, text: str) -> Json:
        return {"role": "assistant", "content": text}

    def _call(self, text: str, call_id: str, name: str, arguments: Json, result: str) -> list[Json]:
        function = {"name": name.lower(), "arguments": compact(arguments).decode()}
        call = {"id": call_id, "type": "function", "function": function}
        return [
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": result},
        ]


CLIENTS: dict[str, type[Session]] = {"claude-code": ClaudeCode, "opencode": OpenCode}


def compact(body: Json) -> bytes:
    """A body as the clients write it: no blanks, nothing escaped that need not be."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()

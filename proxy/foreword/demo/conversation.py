"""A conversation in the shape that Claude Code 2.1.116 has on the wire: everything that both runs are given.

Keys, their order, the system blocks and the moving ``cache_control`` are the client's; the texts are filler. Lengths
are those of the incident: 23 tools that the stand-in's template renders to exactly 17,920 tokens, and prompts that
grow from 40,000 to 180,000 tokens.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from foreword.standin import tokens
from foreword.standin.options import Options
from foreword.standin.template import render

Json = dict[str, Any]

MODEL: Final = "deepseek-v4-flash"
BLOCK_TOKENS: Final = 64
TOOL_TOKENS: Final = 17_920
TURNS: Final = 20
FIRST_PROMPT: Final = 40_000
LAST_PROMPT: Final = 180_000
CACHE_BLOCKS: Final = 3_200
# Before these turns (counted from 0) somebody else's prompt takes the whole cache.
INTERRUPTED: Final = (3, 8)

_IDENTITY: Final = "You are Claude Code, Anthropic's official CLI for Claude."
_MAIN_PROMPT_BYTES: Final = 25_700
_TOOL_NAMES: Final = (
    "Agent", "AskUserQuestion", "Bash", "CronCreate", "CronDelete", "CronList", "Edit", "EnterPlanMode",
    "EnterWorktree", "ExitPlanMode", "ExitWorktree", "Glob", "Grep", "NotebookEdit", "Read", "ScheduleWakeup",
    "Skill", "TaskOutput", "TaskStop", "TodoWrite", "WebFetch", "WebSearch", "Write",
)  # fmt: skip
_PHRASES: Final = (
    "read write edit file path line test build branch commit diff merge review module class method field value type "
    "error trace queue cache block prompt token stream engine worker thread socket buffer header config default flag "
    "before after while until never always should must returns raises checks keeps drops moves counts finds the a of "
    "in to with from and or not only each every this that"
)
_WORDS: Final = _PHRASES.split()


@dataclass(frozen=True, slots=True)
class Step:
    """One request: what the user's side adds to the conversation, and what the engine is to answer."""

    added: str
    say: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """What every request of a run is made of."""

    system: list[Json]
    tools: list[Json]
    steps: list[Step]
    session_id: str

    def request(self, messages: list[Json], turn: int) -> bytes:
        """The body of one request. The billing header's ``cch`` is another one in each."""
        cch = hashlib.sha256(f"{self.session_id}/{turn}".encode()).hexdigest()[:5]
        header = (
            f"x-anthropic-billing-header: cc_version=2.1.116.d8c; cc_entrypoint=claude-vscode; cch={cch};"
        )
        user = {
            "device_id": hashlib.sha256(b"demo").hexdigest(),
            "account_uuid": "",
            "session_id": self.session_id,
        }
        body = {
            "model": MODEL,
            "messages": _cached_to_here(messages),
            "system": [{"type": "text", "text": header}, *self.system],
            "tools": self.tools,
            "metadata": {"user_id": _compact(user)},
            "max_tokens": 32_000,
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "stream": True,
        }
        return _compact(body).encode()


def scripted() -> Conversation:
    """The scripted conversation; always the same."""
    tools = _tools()
    main = filler("main prompt", _MAIN_PROMPT_BYTES)
    system = [
        {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        for text in (_IDENTITY, "\n" + main)
    ]
    head = TOOL_TOKENS + _MAIN_PROMPT_BYTES // tokens.WIDTH
    growth = (LAST_PROMPT - FIRST_PROMPT) // (TURNS - 1)
    steps: list[Step] = []
    for turn in range(TURNS):
        say = _say(turn)
        added = FIRST_PROMPT - head if turn == 0 else growth - tokens.count(tokens.encode(steps[-1].say))
        steps.append(Step(filler(f"turn {turn}", added * tokens.WIDTH), say))
    return Conversation(system, tools, steps, session_id="0b9c2c6e-6a1f-4f0e-9f3e-5d2f6a1c7e42")


def filler(seed: str, length: int) -> str:
    """Words, ``length`` bytes of them, that follow from the seed."""
    digest = hashlib.shake_256(seed.encode()).digest(length // 2)
    words = [_WORDS[byte % len(_WORDS)] for byte in digest]
    lines = (" ".join(words[at : at + 12]) for at in range(0, len(words), 12))
    return "\n".join(lines)[:length]


def _say(turn: int) -> str:
    """The engine's output: it thinks, says a sentence and reads the next file; at the end it only says it is done."""
    thought = f"{tokens.THINK}{filler(f'thought {turn}', 120)}{tokens.THINK_END}"
    if turn == TURNS - 1:
        return f"{thought}All {TURNS - 1} modules are read."
    call = json.dumps({"name": "Read", "arguments": {"file_path": f"/project/src/module_{turn + 1:02}.py"}})
    return f"{thought}Next is module {turn + 1}.{tokens.CALL}\n{call}\n{tokens.CALL_END}"


def _tools() -> list[Json]:
    """Tools that the template renders to exactly ``TOOL_TOKENS`` tokens, once they are translated to chat."""
    share = (TOOL_TOKENS * tokens.WIDTH) // len(_TOOL_NAMES) - 600
    tools = [_tool(name, share) for name in _TOOL_NAMES]
    missing = (TOOL_TOKENS - _rendered_tokens(tools)) * tokens.WIDTH
    tools[-1] = _tool(_TOOL_NAMES[-1], share + missing)
    return tools


def _tool(name: str, length: int) -> Json:
    parameter = {"type": "string", "description": filler(f"{name} parameter", 160)}
    return {
        "name": name,
        # Line breaks cost a second byte where JSON escapes them.
        "description": filler(f"{name} description", length).replace("\n", " "),
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"file_path": parameter, "options": {"type": "object", "additionalProperties": {}}},
            "required": ["file_path"],
            "additionalProperties": False,
        },
    }


def _rendered_tokens(tools: list[Json]) -> int:
    chat = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            },
        }
        for tool in tools
    ]
    return tokens.count(tokens.encode(render([], chat, Options(), thinking=True, generation_prompt=False)))


def _cached_to_here(messages: list[Json]) -> list[Json]:
    """The same messages with ``cache_control`` on the last block, where the client moves it each time."""
    *earlier, last = messages
    *blocks, block = last["content"]
    return [*earlier, last | {"content": [*blocks, block | {"cache_control": {"type": "ephemeral"}}]}]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

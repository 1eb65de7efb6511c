"""Days of two clients on one engine, simulated: what each prompt shares with the one before and what an engine with a
block cache reuses follow from the prompts themselves. Causes are planted in the prompts or in the engine, never in a
verdict."""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Record = dict[str, Any]

BLOCK = 64
BYTES_A_TOKEN = 4
DAY = 1_786_924_800.0


class Segment(NamedTuple):
    """A segment as pieces (what it says, bytes): two texts share what their first pieces share."""

    path: str
    kind: str
    pieces: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.pieces)

    @property
    def digest(self) -> str:
        said = (self.kind, self.pieces)
        return hashlib.blake2b(repr(said).encode(), digest_size=6).hexdigest()

    def as_json(self) -> Record:
        return {"path": self.path, "class": self.kind, "bytes": self.bytes, "digest": self.digest}


def segment(path: str, kind: str, size: int, said: str = "") -> Segment:
    return Segment(path, kind, ((said or path, size),))


Prompt = list[Segment]


def tools(count: int = 23) -> Prompt:
    sizes = random.Random(23)
    return [segment(f"tools[{n}]", "tools", sizes.randrange(900, 6_000), f"tool {n}") for n in range(count)]


def tokens_of(prompt: Prompt) -> int:
    return sum(each.bytes for each in prompt) // BYTES_A_TOKEN


def pieces_of(prompt: Prompt) -> Iterator[tuple[tuple[str, str], int]]:
    for each in prompt:
        for said, size in each.pieces:
            yield (each.kind, said), size


class Engine:
    """A prefix cache of whole blocks without an end; what a conversation read can be dropped."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], Any] = {}

    def reuse(self, prompt: Prompt) -> int:
        """Tokens of ``prompt`` that are there, and reads the rest."""
        node, there, known = self._read, 0, True
        for said, size in pieces_of(prompt):
            if known and said in node:
                there += size
            else:
                known = False
            node = node.setdefault(said, {})
        return there // BYTES_A_TOKEN // BLOCK * BLOCK

    def drop(self, prompt: Prompt, kept: int) -> None:
        """Forgets all behind the first ``kept`` segments."""
        node = self._read
        for said, _ in pieces_of(prompt[:kept]):
            node = node.get(said, {})
        node.clear()


@dataclass
class Line:
    """One conversation."""

    client: str
    entry: str
    number: int
    tokens: int
    """The length of its first prompt."""
    tools: Prompt = field(default_factory=tools)
    system: Prompt = field(default_factory=list)
    opening: Prompt = field(default_factory=list)
    history: Prompt = field(default_factory=list)
    before: Prompt = field(default_factory=list)
    turn: int = 0

    def grow(self, tokens: int) -> None:
        index = len(self.history) + 1
        said = f"{self.client} {self.number} {index}"
        self.history.append(segment(f"messages[{index}].content", "history", tokens * BYTES_A_TOKEN, said))

    def head(self) -> Prompt:
        return [*self.tools, *self.system, *self.opening]

    def send(self, engine: Engine, at: float) -> Record:
        """The next request, as the sidecar would record it."""
        self.turn += 1
        if self.turn == 1:
            self.grow(self.tokens - tokens_of(self.head()))
        prompt = [*self.head(), *self.history]
        cached = engine.reuse(prompt)
        verdict = judge(self.before, prompt, cached, BLOCK)
        self.before = prompt
        head = self.head()
        return {
            "v": 1,
            "request_id": f"req_{self.number:08x}{self.turn:016x}",
            "time": at,
            "route": "messages" if self.entry == "/v1/messages" else "chat",
            "entry": self.entry,
            "client": self.client,
            "model": "llm-prime",
            "upstream_model": "deepseek-v4-flash",
            "engine": "vllm",
            "session": f"{self.number:016x}",
            "line": self.number,
            "turn": self.turn,
            "stream": True,
            "status": 200,
            "outcome": "ok",
            "fault": None,
            "ttft_seconds": 0.2 + (tokens_of(prompt) - cached) / 5_000,
            "duration_seconds": 9.0,
            "usage": {"prompt_tokens": tokens_of(prompt), "completion_tokens": 50, "cached_tokens": cached},
            "cached_source": "usage",
            "verdict": verdict,
            "prompt": {
                "bytes": tokens_of(prompt) * BYTES_A_TOKEN,
                "segments": len(prompt),
                "head": [each.as_json() for each in head],
                "new": [self.history[-1].as_json()],
            },
            "shadow": {"billing-header": verdict["lost"]} if verdict["class"] == "header" else {},
        }


def judge(before: Prompt, prompt: Prompt, cached: int, block: int) -> Record:
    """The verdict by its definition, from the two prompts and what was reused."""
    expected = tokens_of(before) // block * block
    lost = max(0, expected - cached)
    told: Record = {"name": "append-only", "expected": expected, "shared": None, "lost": lost, "exact": True}
    told |= {"path": None, "class": None, "kind": None}
    if not before:
        return told | {"name": "first", "expected": None, "lost": 0}
    first = next(
        (n for n, (a, b) in enumerate(zip(before, prompt, strict=False)) if a.digest != b.digest), None
    )
    if first is None:
        return told | ({"name": "engine-lost"} if lost else {})
    old, new = before[first], prompt[first]
    moved = new.digest in {each.digest for each in before} and old.digest in {each.digest for each in prompt}
    same = 0
    for one, other in zip(old.pieces, new.pieces, strict=False):
        if one != other:
            break
        same += one[1]
    shared = tokens_of(prompt[:first]) + same // BYTES_A_TOKEN
    kind = "reordered" if moved else "edited"
    return told | {
        "name": "changed", "shared": shared, "exact": False, "path": new.path, "class": new.kind, "kind": kind,
    }  # fmt: skip


Cause = Callable[[Line, random.Random, Engine], None]
"""What goes wrong before a request of Claude Code is sent."""


def claude_code(number: int) -> Line:
    line = Line("claude-code", "/v1/messages", number, 40_000)
    line.system = [
        segment("system[0]", "system", 57),
        segment("system[1]", "system", 14_000),
    ]
    line.opening = [segment("messages[0].content[0]", "first-user", 2_000, f"question {number}")]
    return line


def reasonix(number: int) -> Line:
    line = Line("reasonix", "/v1/chat/completions", number, 30_000)
    line.system = [segment("messages[0].content", "system", 12_000, "reasonix")]
    line.opening = [segment("messages[1].content", "first-user", 700, f"question {number}")]
    return line


def day(cause: Cause | None = None, seed: int = 1, *, lines: int = 1) -> list[Record]:
    """451 requests of Claude Code growing from 40k to 180k, with a cause in them, among 444 of a client that only adds.

    ``lines``: so many conversations of Claude Code take turns.
    """
    rng, engine = random.Random(seed), Engine()
    talks = [claude_code(1_000 + n) for n in range(lines)]
    growth = 140_000 * lines // 450
    made, other = [], reasonix(1)
    for n in range(451):
        at = DAY + 32_400 + 60.0 * n
        talk = talks[n % lines]
        if talk.turn:
            talk.grow(growth + rng.randrange(-40, 40))
        if cause is not None:
            cause(talk, rng, engine)
        made.append(talk.send(engine, at))
        if n < 444:
            if tokens_of(other.before) > 180_000:
                other = reasonix(other.number + 1)
            if other.turn:
                other.grow(2_000)
            made.append(other.send(engine, at + 20))
    return made


# ---- causes


def header(line: Line, rng: random.Random, _: Engine) -> None:
    """The incident: a billing header that is new each time, behind the tools."""
    said = f"cch={rng.randrange(1 << 30):08x}"
    rest = [each for each in line.system if each.kind != "header"]
    line.system = [segment("system[0]", "header", 84, said), *rest]


def tools_shuffled(line: Line, rng: random.Random, _: Engine) -> None:
    rng.shuffle(line.tools)
    line.tools = [each._replace(path=f"tools[{n}]") for n, each in enumerate(line.tools)]


def two_tools_swapped(line: Line, rng: random.Random, _: Engine) -> None:
    at = rng.randrange(len(line.tools) - 1)
    line.tools[at : at + 2] = line.tools[at : at + 2][::-1]
    line.tools = [each._replace(path=f"tools[{n}]") for n, each in enumerate(line.tools)]


def few_tools_shuffled(line: Line, rng: random.Random, engine: Engine) -> None:
    """The last five of them only."""
    rest, last = line.tools[:-5], line.tools[-5:]
    rng.shuffle(last)
    line.tools = [each._replace(path=f"tools[{n}]") for n, each in enumerate([*rest, *last])]


def a_tool_tells_the_time(line: Line, _: random.Random, __: Engine) -> None:
    clock = ((f"tool 7 {line.turn}", 3_000),)
    line.tools[7] = Segment("tools[7]", "tools", clock)


def system_tells_the_time(line: Line, _: random.Random, __: Engine) -> None:
    pieces = (("system", 8_000), (f"it is {line.turn}", 30), ("system goes on", 6_000))
    line.system[-1] = Segment("system[1]", "system", pieces)


def opening_rewritten(line: Line, _: random.Random, __: Engine) -> None:
    line.opening = [segment("messages[0].content[0]", "first-user", 2_000, f"reminder of turn {line.turn}")]


def passages_rebuilt(line: Line, rng: random.Random, __: Engine) -> None:
    """A long first user message, put together anew."""
    size = 30_000 + rng.randrange(9_000)
    line.opening = [segment("messages[0].content[0]", "first-user", size, f"passages {line.turn}")]


def evicted(line: Line, rng: random.Random, engine: Engine) -> None:
    """Half of the time the engine has dropped the conversation meanwhile, but for its head."""
    if line.before and rng.random() < 0.5:
        engine.drop(line.before, len(line.tools) + len(line.system))

"""Exchange records as the core writes them, made up: conversations with what happened to them planted."""

from collections.abc import Iterable, Iterator
from typing import Any

from foreword.findings import Board, Detectors, Finding

Record = dict[str, Any]

HEAD = [
    *({"path": f"tools[{n}]", "class": "tools", "bytes": 3100, "digest": f"{n:012x}"} for n in range(23)),
    {"path": "system[0]", "class": "header", "bytes": 84, "digest": "a" * 12},
    {"path": "system[1]", "class": "system", "bytes": 62, "digest": "b" * 12},
    {"path": "system[2]", "class": "system", "bytes": 25_700, "digest": "c" * 12},
    {"path": "messages[0].content[0]", "class": "first-user", "bytes": 400, "digest": "d" * 12},
]
"""Tools, a header, an identity, a long system prompt, the first message: Claude Code's."""


def record(
    verdict: str | None = "append-only",
    *,
    time: float = 1000.0,
    prompt: int | None = 50_000,
    cached: int | None = 48_000,
    line: int | None = 1,
    turn: int | None = 2,
    client: str = "claude-code",
    entry: str = "/v1/messages",
    **members: Any,
) -> Record:
    """One record. Members of the verdict are given as ``verdict_lost`` and the like."""
    told = {
        name.removeprefix("verdict_"): members.pop(name)
        for name in list(members)
        if name.startswith("verdict_")
    }
    return {
        "v": 1,
        "time": time,
        "route": "messages" if entry == "/v1/messages" else "chat",
        "entry": entry,
        "client": client,
        "model": "llm-prime",
        "upstream_model": "deepseek-v4-flash",
        "engine": "vllm",
        "session": "0123456789abcdef",
        "line": line,
        "turn": turn,
        "status": 200,
        "outcome": "ok",
        "fault": None,
        "usage": {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": 20},
        "verdict": None if verdict is None else {"name": verdict, **told},
        "prompt": {"bytes": (prompt or 0) * 4, "segments": 30, "head": HEAD, "new": []},
        "shadow": {},
        **members,
    }


def changed(
    path: str, segment: str, *, lost: int | None = 30_000, kind: str = "edited", **members: Any
) -> Record:
    """A record whose prompt left its line at ``path``."""
    verdict = {
        "path": path,
        "class": segment,
        "lost": lost,
        "kind": kind,
        "shared": members.pop("shared", 17_980),
    }
    return record("changed", **{f"verdict_{name}": value for name, value in verdict.items()}, **members)


def conversation(
    turns: int,
    *,
    line: int,
    start: float = 0.0,
    first: int = 20_000,
    growth: int = 1_500,
    every: float = 30.0,
    block: int = 16,
    **members: Any,
) -> Iterator[Record]:
    """A healthy conversation: a cold turn, then each reuses all of the one before, down to a block."""
    before = 0
    for turn in range(1, turns + 1):
        prompt = first + (turn - 1) * growth
        name = "first" if turn == 1 else "append-only"
        cached = before // block * block
        yield record(
            name,
            time=start + turn * every,
            prompt=prompt,
            cached=cached,
            line=line,
            turn=turn,
            verdict_lost=0,
            verdict_expected=cached,
            **members,
        )
        before = prompt


class House:
    """A board with all detectors, as the sidecar has them."""

    def __init__(self, window: int | None = 200_000) -> None:
        self.board = Board()
        self.detectors = Detectors(self.board, lambda: window)
        self.ever: set[str] = set()
        """Ids of all findings that were open at any time."""

    def meet(self, records: Iterable[Record]) -> "House":
        for each in records:
            self.detectors.note(each)
            self.ever.update(finding.id for finding in self.board.open())
        assert not any(self.detectors.failures.values()), self.detectors.failures
        return self

    def ids(self) -> list[str]:
        return sorted(finding.id for finding in self.board.open())

    def never(self) -> bool:
        """No finding was ever open."""
        return not self.ever

    def one(self, name: str) -> Finding:
        """The only open finding of this kind."""
        (found,) = (finding for finding in self.board.open() if finding.id == name)
        return found

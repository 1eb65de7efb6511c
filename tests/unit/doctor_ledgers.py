"""Ledgers with planted causes: records as the contract of the ledger has them, made without any of Foreword's code."""

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MONDAY = 1786924800.0
"""2026-08-17T00:00:00Z, the day of the incident."""

BLOCK = 64

Record = dict[str, Any]


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def segment(path: str, kind: str, size: int, text: str) -> dict[str, Any]:
    return {"path": path, "class": kind, "bytes": size, "digest": digest(f"{path}={text}")}


def whole_blocks(tokens: int) -> int:
    return tokens - tokens % BLOCK


def record(
    number: int,
    at: float,
    *,
    prompt: int | None,
    cached: int | None,
    verdict: str | None = "append-only",
    lost: int | None = None,
    expected: int | None = None,
    path: str | None = None,
    kind: tuple[str, str] | None = None,
    head: list[dict[str, Any]] | None = None,
    **members: Any,
) -> Record:
    """One exchange. ``kind`` is the class and the kind of change of a `changed` verdict."""
    made: Record = {
        "v": 1,
        "request_id": f"req_{number:024x}",
        "time": round(at, 3),
        "route": "messages",
        "entry": "/v1/messages",
        "client": "claude-code",
        "client_version": "2.1.116",
        "model": "llm-prime",
        "upstream_model": "deepseek-v4-flash-0731",
        "engine": "vllm",
        "session": digest("one session") + "0000",
        "line": 1,
        "turn": number + 1,
        "stream": True,
        "status": 200,
        "outcome": "ok",
        "fault": None,
        "rules": [],
        "unknown_shapes": [],
        "dropped": [],
        "body_bytes": (prompt or 0) * 4,
        "upstream_bytes": (prompt or 0) * 4,
        "answer_bytes": 2_000,
        "events": 60,
        "unreadable_events": 0,
        "prepare_seconds": 0.001,
        "ttft_seconds": 1.0,
        "duration_seconds": 3.0,
        "retried": False,
        "estimated": False,
        "finish": "end_turn",
        "message_id": f"msg_{number}",
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 200,
            "cached_tokens": cached,
            "created_tokens": None,
            "reasoning_tokens": None,
        },
        "cached_source": None if cached is None else "usage",
        "told": None,
        "verdict": None,
        "prompt": None,
        "shadow": {},
    }
    if verdict is not None:
        made["verdict"] = {
            "name": verdict,
            "expected": expected,
            "shared": None,
            "lost": lost,
            "exact": False,
            "path": path,
            "class": kind[0] if kind else None,
            "kind": kind[1] if kind else None,
        }
    if head is not None:
        made["prompt"] = {
            "bytes": (prompt or 0) * 4,
            "segments": len(head) + 10,
            "head": head,
            "shared": {"segments": len(head), "bytes": sum(each["bytes"] for each in head)},
            "new": [segment("messages[9].content[0]", "history", 800, str(number))],
        }
    return made | members


def tools(count: int = 23, size: int = 3_100) -> list[dict[str, Any]]:
    return [segment(f"tools[{n}]", "tools", size, f"tool {n}") for n in range(count)]


@dataclass
class Talk:
    """One growing conversation of a client whose engine caches blocks, and what is done to it."""

    session: str
    client: str = "claude-code"
    entry: str = "/v1/messages"
    line: int = 1
    prompt: int = 30_000
    members: dict[str, Any] = field(default_factory=dict)
    turn: int = 0
    held: int = 0

    def head(self) -> list[dict[str, Any]]:
        return [
            *tools(),
            segment("system[0]", "system", 60, "identity"),
            segment("system[1]", "system", 12_000, f"status of {self.session}"),
            segment("messages[0].content[0]", "first-user", 700, f"question of {self.session}"),
        ]

    def next(self, number: int, at: float, grown: int, **changes: Any) -> Record:
        """The next turn; by default the engine reuses all it can."""
        self.turn += 1
        self.prompt += grown
        first = self.turn == 1
        kept = 0 if first else whole_blocks(self.held)
        values: Record = {
            "prompt": self.prompt,
            "cached": kept,
            "verdict": "first" if first else "append-only",
            "expected": kept or None,
            "lost": 0,
            "head": self.head(),
        }
        values |= self.members | changes
        self.held = self.prompt
        return record(
            number,
            at,
            **values,
            client=self.client,
            entry=self.entry,
            route="messages" if self.entry == "/v1/messages" else "chat",
            session=digest(self.session) + "00ff" if self.client == "claude-code" else None,
            line=self.line,
            turn=self.turn,
        )


def paper_day(*, repaired: bool = False, day: float = MONDAY) -> list[Record]:
    """The incident's day: 451 requests of Claude Code behind a volatile header, 444 of Reasonix without."""
    rng = random.Random(817)
    lengths = [0] * 28 + [256] * 40 + [17_920] * 383
    rng.shuffle(lengths)
    records = []
    for n in range(451):
        prompt = 40_000 + n * 140_000 // 450 + rng.randrange(64)
        held = prompt - 900
        head = [
            *tools(),
            segment("system[0]", "header", 98, f"cch={rng.randrange(1 << 20):05x}"),
            segment("system[1]", "system", 57, "identity"),
            segment("system[2]", "system", 14_000, "workspace"),
            segment("messages[0].content[0]", "first-user", 4_000, "summary"),
        ]
        values: Record = {"prompt": prompt, "cached": lengths[n], "head": head}
        if repaired:
            values |= {"cached": whole_blocks(held) if n else 0, "verdict": "append-only" if n else "first"}
            values |= {
                "expected": held,
                "lost": 0,
                "head": [each for each in head if each["class"] != "header"],
            }
            values |= {"rules": ["billing-header"]}
        else:
            lost = max(0, held - lengths[n])
            values |= {"verdict": "changed", "path": "system[0]", "kind": ("header", "edited")}
            values |= {"expected": held, "lost": lost, "shadow": {"billing-header": lost}}
        records.append(record(n, day + 32_400 + n * 60, **values))
    talk = Talk("reasonix", client="reasonix", entry="/v1/chat/completions", line=2)
    for n in range(444):
        if talk.prompt > 190_000:
            talk = Talk("reasonix", client="reasonix", entry="/v1/chat/completions", line=talk.line + 1)
        made = talk.next(1_000 + n, day + 32_400 + n * 61, 2_000)
        made["model"] = "deepseek-v4-flash-0731"
        records.append(made)
    return records


def healthy(conversations: int = 12, turns: int = 30, seed: int = 5) -> list[Record]:
    """Sessions that only grow, take turns, share their head, start titles and sub-agents, repeat, and compact."""
    rng = random.Random(seed)
    records: list[Record] = []
    number, at = 0, MONDAY
    for line in range(conversations):
        talk = Talk(f"session {line}", line=10 * line)
        for turn in range(turns):
            number, at = number + 1, at + 20
            # Small steps: for several turns in a row the reused length stays below the same block.
            made = talk.next(number, at, rng.choice([9, 15, 40, 700, 2_600]))
            if turn == 0:
                # The head is warm from the sessions before, at one and the same length.
                made["usage"]["cached_tokens"] = 22_016 if line else 0
            records.append(made)
            if turn % 10 == 4:
                number, at = number + 1, at + 1
                title = [
                    segment("system[0]", "system", 400, "title"),
                    segment("messages[0].content[0]", "first-user", 90, f"{line} {turn}"),
                ]
                records.append(
                    record(
                        number,
                        at,
                        prompt=220,
                        cached=64,
                        verdict="first",
                        lost=0,
                        head=title,
                        session=made["session"],
                        line=10 * line + 1 + turn,
                        turn=1,
                    )
                )
        number, at = number + 1, at + 5
        after = talk.next(number, at, 0, prompt=24_000, cached=22_016, verdict="compacted", lost=0)
        records.append(after)
    return records


def write(folder: Path, records: Iterable[Record], *, files: int = 1) -> Path:
    """A ledger directory of so many files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each, separators=(",", ":")) + "\n" for each in records]
    size = -(-len(lines) // files)
    for n in range(files):
        (folder / f"exchanges-{n:04}.jsonl").write_text("".join(lines[n * size : (n + 1) * size]))
    return folder

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
        "turn": 2,
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
    base = int(day)
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
        records.append(record(base + n, day + 32_400 + n * 60, **values, turn=n + 1))
    talk = Talk("reasonix", client="reasonix", entry="/v1/chat/completions", line=2)
    for n in range(444):
        if talk.prompt > 190_000:
            talk = Talk("reasonix", client="reasonix", entry="/v1/chat/completions", line=talk.line + 1)
        made = talk.next(base + 1_000 + n, day + 32_400 + n * 61, 2_000)
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


def evictions(*, checkpoints: bool = False) -> list[Record]:
    """Eight long conversations that take turns on an engine which cannot hold them all."""
    rng = random.Random(7)
    talks = [Talk(f"giant {n}", line=n, prompt=190_000 + 900 * n) for n in range(8)]
    records = []
    for n in range(240):
        talk = rng.choice(talks)
        changes: Record = {}
        # Strata resumes at any token, and falls back to its checkpoints; vLLM counts in blocks.
        kept = talk.held - 3 if checkpoints else whole_blocks(talk.held)
        if talk.turn:
            gone = rng.random() < 0.5
            rest = 16_384 if checkpoints else rng.choice([0, 17_920])
            changes = {"cached": rest if gone else kept, "expected": kept}
            changes |= {"verdict": "engine-lost", "lost": kept - rest} if gone else {}
        made = talk.next(n, MONDAY + 40 * n, 900 + rng.randrange(900), **changes)
        records.append(made | ({"engine": "strata"} if checkpoints else {}))
    return records


def planted(seed: int) -> tuple[list[Record], str, int]:
    """A segment that changes on every turn, somewhere in the head of one client among healthy ones.

    Tells its path too, and the length at which reuse is pinned.
    """
    rng = random.Random(seed)
    head = [
        *tools(rng.randrange(3, 30), rng.randrange(800, 5_000)),
        *(
            segment(f"system[{n}]", "system", rng.randrange(50, 9_000), "same")
            for n in range(rng.randrange(1, 5))
        ),
        segment("messages[0].content[0]", "first-user", rng.randrange(100, 3_000), "context"),
        segment("messages[0].content[1]", "first-user", 300, "question"),
    ]
    place = rng.randrange(2, len(head) - 1)
    path, kind = head[place]["path"], head[place]["class"]
    size = head[place]["bytes"]
    at = sum(each["bytes"] for each in head[:place]) // 4
    known = rng.random() < 0.5  # whether the client sends a session id
    records, number = healthy(seed=seed), 50_000
    for talk in range(4):
        prompt = at + 20_000
        for turn in range(25):
            number, held, prompt = number + 1, prompt, prompt + rng.randrange(300, 2_500)
            head[place] = segment(path, kind, size, f"{talk} {turn}")
            head[-1] = segment("messages[0].content[1]", "first-user", 300, f"question {talk}")
            cached = whole_blocks(at) if talk or turn else 0
            values: Record = {"verdict": "first", "lost": 0}
            if turn:
                values = {"verdict": "changed", "path": path, "kind": (kind, "edited"), "shared": at}
                values |= {"expected": whole_blocks(held), "lost": max(0, whole_blocks(held) - cached)}
            shared = values.pop("shared", None)
            made = record(
                number,
                MONDAY + 3 * number,
                prompt=prompt,
                cached=cached,
                head=list(head),
                client="opencode" if known else "qwen-code",
                entry="/v1/chat/completions",
                route="chat",
                session=f"{talk:016x}" if known else None,
                line=1_000 + talk,
                turn=turn + 1,
                **values,
            )
            made["verdict"]["shared"] = shared
            records.append(made)
    return records, path, whole_blocks(at)


def template_drops(turns: int = 60) -> list[Record]:
    """A template that forgets the last turn's reasoning: each turn reuses a little less than it could."""
    talk = Talk("thinker")
    records = []
    for n in range(turns):
        kept = whole_blocks(max(0, talk.held - 1_500))
        changes: Record = {"cached": kept, "verdict": "template", "lost": 1_500} if n else {}
        records.append(talk.next(n, MONDAY + 30 * n, 2_000, **changes))
    return records


def rag(turns: int = 60) -> list[Record]:
    """Passages in the first user message that are chosen anew on every third turn."""
    rng = random.Random(3)
    talk = Talk("passages", client="opencode", entry="/v1/chat/completions")
    block = segment("messages[1].content[0]", "first-user", 40_000, "passages 0")
    records = []
    for n in range(turns):
        changes: Record = {}
        if n % 3 == 2:
            block = segment(
                "messages[1].content[0]", "first-user", 40_000 + rng.randrange(9_000), f"passages {n}"
            )
            changes = {"verdict": "changed", "path": block["path"], "kind": ("first-user", "edited")}
            changes |= {"cached": 20_480, "expected": whole_blocks(talk.held), "lost": talk.held - 20_480}
        head = [*tools(), segment("messages[0].content[0]", "system", 9_000, "system"), block]
        records.append(talk.next(n, MONDAY + 30 * n, 1_200, head=head, **changes))
    return records


def compactions(*, told_twice: bool) -> list[Record]:
    """A client that compacts at 90k again and again, on an engine whose window others fill to 190k."""
    records = []
    talk, number = Talk("early", prompt=30_000), 0
    for _ in range(6):
        while talk.prompt < 90_000:
            number += 1
            made = talk.next(number, MONDAY + 20 * number, 3_000)
            cached = made["usage"]["cached_tokens"]
            told = {"output_tokens": 200, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
            told["input_tokens"] = talk.prompt if told_twice else talk.prompt - cached
            records.append(made | {"told": told})
        number += 1
        talk.prompt = 34_000
        records.append(
            talk.next(
                number, MONDAY + 20 * number, 0, verdict="compacted", cached=22_016, expected=None, lost=0
            )
        )
    if not told_twice:
        other = Talk("roomy", client="opencode", entry="/v1/chat/completions", prompt=60_000)
        records += [other.next(5_000 + n, MONDAY + 20 * n, 2_000) for n in range(66)]
    return records


def write(folder: Path, records: Iterable[Record], *, files: int = 1) -> Path:
    """A ledger directory of so many files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each, separators=(",", ":")) + "\n" for each in records]
    size = -(-len(lines) // files)
    for n in range(files):
        (folder / f"exchanges-{n:04}.jsonl").write_text("".join(lines[n * size : (n + 1) * size]))
    return folder

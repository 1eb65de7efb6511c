"""Healthy traffic of any mix makes no finding: false alarms count as much as misses."""

import random
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.findings_records import House, Record, changed, record

CLIENTS = (
    ("claude-code", "/v1/messages"),
    ("opencode", "/v1/chat/completions"),
    ("codex", "/v1/responses"),
    ("other", "/v1/chat/completions"),
)


class Conversation:
    """One line that only grows, but for what now and then happens to anyone."""

    def __init__(self, dice: random.Random, line: int, step: int) -> None:
        self.dice, self.line, self.step = dice, line, step
        self.client, self.entry = dice.choice(CLIENTS)
        self.turn = 0
        self.before = 0
        self.prompt = dice.choice((30, 900, 6_000, 20_000, 60_000))
        self.since = 0
        """Turns since something last happened."""

    def next(self, time: float) -> Record:
        self.turn += 1
        self.since += 1
        name, cached, lost = "append-only", self.before // self.step * self.step, 0
        event = self.dice.random() if self.since > 12 else 1.0
        if self.turn == 1:
            name, cached = "first", self.dice.choice((0, 0, 256, 17_920)) if self.prompt > 18_000 else 0
        elif self.prompt > 168_000:
            name, self.prompt, cached = "compacted", 20_000, 17_920
        elif event < 0.05:  # the engine needed the room for somebody else
            name, cached, lost = "engine-lost", 0, self.before
        elif event < 0.15:  # a tool came late, somebody edited the instructions, a message was taken back
            path, segment = self.dice.choice(
                (("tools[4]", "tools"), ("system[2]", "system"), ("messages[9]", "history"))
            )
            self.since = 0
            made = changed(path, segment, lost=self.before // 2, **self.members(time, self.before // 2))
            return self.grown(made)
        elif event < 0.2:
            name = self.dice.choice(("repeat", "parameters"))
        elif self.before < self.step:
            name = "below-minimum" if self.prompt < 256 else "granularity"
        elif self.before - cached > 512:
            name, lost = "granularity", self.before - cached
        if name == "engine-lost":
            self.since = 0
        return self.grown(record(name, verdict_lost=lost, **self.members(time, cached)))

    def members(self, time: float, cached: int) -> dict[str, Any]:
        return {
            "time": time, "prompt": self.prompt, "cached": cached, "line": self.line, "turn": self.turn,
            "client": self.client, "entry": self.entry, "session": f"{self.line // 3:016x}",
        }  # fmt: skip

    def grown(self, made: Record) -> Record:
        self.before = self.prompt
        self.prompt += self.dice.randint(1, max(40, self.prompt // 20))
        return made


def traffic(seed: int, lines: int, exchanges: int, step: int) -> Iterator[Record]:
    """Conversations that take turns, with the small requests that agents send beside them."""
    dice = random.Random(seed)
    lined = iter(range(1, 10_000_000))
    talks = [Conversation(dice, next(lined), step) for _ in range(lines)]
    time = 0.0
    for _ in range(exchanges):
        time += dice.expovariate(1 / 20)
        if dice.random() < 0.1:  # a title, a memory, a classification
            yield record("first", time=time, prompt=dice.randint(50, 900), cached=0, line=next(lined), turn=1)
        if dice.random() < 0.02:
            talks[dice.randrange(lines)] = Conversation(dice, next(lined), step)
        if dice.random() < 0.01:
            yield {**record(None, time=time, prompt=None, cached=None), "outcome": "left", "status": 499}
        yield dice.choice(talks).next(time)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lines=st.integers(1, 24),
    exchanges=st.integers(1, 400),
    step=st.sampled_from([16, 64, 256, 2_048, 16_384]),
)
def test_healthy_traffic_makes_no_finding(seed: int, lines: int, exchanges: int, step: int) -> None:
    house = House()
    for made in traffic(seed, lines, exchanges, step):
        house.meet([made])
        assert house.ids() == []


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), lines=st.integers(1, 12))
def test_an_engine_that_reports_nothing_makes_that_finding_only(seed: int, lines: int) -> None:
    house = House()
    for made in traffic(seed, lines, 200, 16):
        made["usage"]["cached_tokens"] = None
        if made["verdict"] is not None and made["verdict"]["name"] not in ("changed", "first", "compacted"):
            made["verdict"] = {"name": "not-reported", "lost": None}
        house.meet([made])
        assert set(house.ids()) <= {"usage-not-reported"}

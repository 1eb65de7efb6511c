"""The planner's simulation against a plain reading of the engine's rules, which compares real tokens."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword._core import PlannedOutcome, simulate
from foreword.planner.costs import MIB, Costs
from foreword.planner.grid import Setting
from foreword.planner.load import Request

CHECKPOINT = 118_000_000
# A token is a MiB of snapshot: budgets are lengths.
COSTS = Costs(
    sizes=[(0, 0), (1_000, 1_000 * MIB)],
    prefill_rate=10.0,
    prefill_floor=0.5,
    copy_rate=50.0 * MIB,
    decode_rate=4.0,
)


@dataclass
class Told:
    """A request with its text: tokens are numbers, and only the common head's occur twice."""

    conversation: int
    prompt: list[int]
    answer: list[int]
    system: int
    at: float | None = None
    think: float | None = None


@dataclass
class State:
    conversation: int
    text: list[int]
    marks: list[int] = field(default_factory=list)
    """The least recently used first."""
    pinned: int | None = None
    pinned_root: bool = False

    def copy(self) -> "State":
        return replace(self, text=list(self.text), marks=list(self.marks))

    def resume_at(self, prompt: list[int]) -> int:
        same = common(self.text, prompt)
        return max((mark for mark in self.marks if mark <= same and mark < len(prompt)), default=0)


def common(one: list[int], other: list[int]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


@dataclass
class Oracle:
    setting: Setting
    slot: State | None = None
    parked: list[tuple[int, int, State]] = field(default_factory=list)  # time of last use, MiB, state
    retained: int = 0
    clock: int = 0
    counts: dict[str, float] = field(default_factory=dict)

    def count(self, name: str, amount: float = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def serve(self, told: Told, alone: dict[int, State]) -> float | None:
        """Seconds that the engine is busy with the prompt; None if it was refused."""
        setting, prompt = self.setting, told.prompt
        if setting.admit is not None and len(prompt) > setting.admit:
            self.count("refused")
            return None
        copied = 0
        parking = setting.mib > 0 and setting.slots > 0
        if (
            parking
            and self.slot is not None
            and self.slot.conversation != told.conversation
            and self.slot.marks
        ):
            copied += self.park(self.slot)
        here = self.slot.resume_at(prompt) if self.slot else 0
        best = max(self.parked, key=lambda entry: (entry[2].resume_at(prompt), entry[0]), default=None)
        if best is not None and best[2].resume_at(prompt) > here:
            self.clock += 1
            self.parked.remove(best)
            self.parked.append((self.clock, best[1], best[2]))
            self.slot = best[2].copy()
            self.count("restores")
            copied += best[1]
        if self.slot is None:
            self.slot = State(told.conversation, [])
        reused = self.read(self.slot, told)
        own = alone.setdefault(told.conversation, State(told.conversation, []))
        before = list(own.text)
        expected = self.read(own, told)
        self.count("lost_turns", reused < expected)
        self.count("turns")
        self.count("read_tokens", len(prompt) - reused)
        self.count("reread_tokens", max(0, common(before, prompt) - reused))
        seconds = 0.5 + (len(prompt) - reused) / 10
        self.count("prefill_seconds", seconds)
        ram = (sum(size for _, size, _ in self.parked) + self.retained) * MIB + len(
            self.slot.marks
        ) * CHECKPOINT
        self.counts["ram_bytes"] = max(self.counts.get("ram_bytes", 0), ram)
        return seconds + copied / 50

    def park(self, state: State) -> int:
        size, limit = len(state.text), self.setting.mib
        if size > limit or (self.setting.skip_above_mib is not None and size > self.setting.skip_above_mib):
            self.count("skipped")
            return 0
        old = [entry for entry in self.parked if entry[2].conversation == state.conversation]
        self.parked = [entry for entry in self.parked if entry not in old]
        self.retained += sum(entry[1] for entry in old)
        self.retained = max(0, self.retained - size)
        while self.retained and sum(e[1] for e in self.parked) + self.retained + size > limit:
            self.retained -= 1
        while sum(e[1] for e in self.parked) + size > limit or len(self.parked) >= self.setting.slots:
            self.parked.remove(min(self.parked, key=lambda entry: entry[0]))
            self.count("evictions")
        self.clock += 1
        self.parked.append((self.clock, size, state.copy()))
        return size

    def read(self, state: State, told: Told) -> int:
        """Reads the prompt into a state from where it can be resumed."""
        setting, prompt = self.setting, told.prompt
        same, resumed = common(state.text, prompt), state.resume_at(prompt)
        state.marks = [mark for mark in state.marks if mark <= same]
        if state.pinned is not None and state.pinned > same:
            state.pinned, state.pinned_root = None, False
        if resumed:
            self.mark(state, resumed)
        for at in range(resumed + 1, len(prompt) + 1):
            root = setting.root > 0 and told.system >= setting.root and at == told.system
            step = setting.every > 0 and (at - resumed) % setting.every == 0
            if root or step or at == len(prompt) - 1:
                if state.pinned is None or (root and not state.pinned_root):
                    state.pinned, state.pinned_root = at, root
                self.mark(state, at)
        state.text = prompt + told.answer
        state.conversation = told.conversation
        return resumed

    def mark(self, state: State, at: int) -> None:
        if at in state.marks:
            state.marks.remove(at)
        state.marks.append(at)
        while len(state.marks) > self.setting.kept:
            others = [mark for mark in state.marks if mark != state.pinned]
            state.marks.remove(others[0] if others else state.marks[0])


def play(load: list[Told], setting: Setting) -> tuple[dict[str, float], list[float]]:
    """Counts, and times to first token in order of size."""
    oracle = Oracle(setting)
    alone: dict[int, State] = {}
    if any(told.at is None and told.think is None for told in load):
        for told in load:
            oracle.serve(told, alone)
        return oracle.counts, []
    waiting = list(range(len(load)))
    answered: dict[int, float] = {}
    free, ttft = -math.inf, []

    def ready(n: int) -> float | None:
        told = load[n]
        if told.at is not None:
            return told.at
        assert told.think is not None
        before = [m for m in range(n) if load[m].conversation == told.conversation]
        if not before:
            return told.think
        return answered[before[-1]] + told.think if before[-1] in answered else None

    while waiting:
        times = [(when, n) for n in waiting if (when := ready(n)) is not None]
        when, n = min(times)
        waiting.remove(n)
        seconds = oracle.serve(load[n], alone)
        if seconds is None:
            answered[n] = when
            continue
        free = max(when, free) + seconds
        ttft.append(free - when)
        answered[n] = free + len(load[n].answer) / 4
    return oracle.counts, sorted(ttft)


def measured(load: list[Told], head: list[int]) -> list[Request]:
    """The requests as the planner gets them: lengths only."""
    texts: dict[int, list[int]] = {}
    requests = []
    for told in load:
        shared = common(texts.get(told.conversation, []), told.prompt)
        texts[told.conversation] = told.prompt + told.answer
        requests.append(
            Request(
                told.conversation,
                len(told.prompt),
                shared,
                common(head, told.prompt),
                told.system,
                len(told.answer),
                told.at,
                told.think,
            )
        )
    return requests


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Told], list[int]]:
    head = list(range(draw(st.integers(0, 60))))
    fresh = iter(range(1_000, 10_000_000))
    texts: dict[int, list[int]] = {}
    timing = draw(st.sampled_from(["none", "at", "think"]))
    clock = 0.0
    load: list[Told] = []
    for _ in range(draw(st.integers(1, 30))):
        who = draw(st.integers(0, 4))
        text = texts.get(who)
        if text is None:
            prompt = [
                *head[: draw(st.integers(0, 60))],
                *(next(fresh) for _ in range(draw(st.integers(1, 90)))),
            ]
        else:
            keep = len(text) if draw(st.integers(0, 3)) else draw(st.integers(0, len(text)))
            prompt = [*text[:keep], *(next(fresh) for _ in range(draw(st.integers(1, 40))))]
        answer = [next(fresh) for _ in range(draw(st.integers(0, 15)))]
        texts[who] = prompt + answer
        clock += draw(st.integers(0, 8))
        # Distinct in time: which of two simultaneous requests comes first is nobody's business.
        at = clock + len(load) / 1_000 if timing == "at" else None
        think = draw(st.integers(0, 9)) + len(load) / 1_000 if timing == "think" else None
        load.append(Told(who, prompt, answer, min(draw(st.sampled_from([0, 20])), len(prompt)), at, think))
    return load, head


SETTINGS = st.builds(
    Setting,
    mib=st.sampled_from([0, 60, 150, 300, 2_000]),
    slots=st.integers(0, 5),
    every=st.sampled_from([0, 7, 25]),
    skip_above_mib=st.sampled_from([None, None, 80]),
    kept=st.integers(1, 6),
    root=st.sampled_from([0, 10]),
    admit=st.sampled_from([None, None, 100]),
)


@settings(max_examples=300, deadline=None)
@given(drawn=loads(), setting=SETTINGS)
def test_the_simulation_is_the_plain_reading_of_the_rules(
    drawn: tuple[list[Told], list[int]], setting: Setting
) -> None:
    load, head = drawn
    (found,) = simulate(measured(load, head), [setting], COSTS)
    counts, ttft = play(load, setting)
    for name in (
        "turns",
        "refused",
        "evictions",
        "skipped",
        "restores",
        "lost_turns",
        "read_tokens",
        "reread_tokens",
        "ram_bytes",
    ):
        assert getattr(found, name) == counts.get(name, 0), name
    assert found.prefill_seconds == pytest.approx(counts.get("prefill_seconds", 0))
    for share in (50, 95, 99):
        expected = ttft[max(1, math.ceil(share * len(ttft) / 100)) - 1] if ttft else None
        assert getattr(found, f"ttft_p{share}") == (None if expected is None else pytest.approx(expected))


def test_a_cap_keeps_what_is_new_and_cuts_the_history() -> None:
    grown = [Request(0, 100), Request(0, 140, 110, output=0), Request(0, 180, 140)]
    (found,) = simulate(grown, [Setting(mib=0, every=25, kept=6, cap=120)], COSTS)
    # 100; then 120 of which 90 were there, resumed at 75; then 120 of which 80 were there, resumed at 75.
    assert (found.prompt_tokens, found.read_tokens) == (340, 100 + 45 + 45)


def test_outcomes_come_in_the_order_of_settings_and_need_no_requests() -> None:
    tried: list[Any] = [Setting(mib=0), Setting(mib=1)]
    found: list[PlannedOutcome] = simulate([], tried, COSTS)
    assert [outcome.turns for outcome in found] == [0, 0]
    assert found[0].ttft_p95 is None

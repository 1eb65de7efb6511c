"""Finding the exchange of a log line."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.engines.loglines import PromptRead
from foreword.watching.joiner import KEEP_SECONDS, WAIT_SECONDS, Joiner


class Bench:
    """A joiner with a fake core and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.settled: dict[str, int | None] = {}
        self.final: list[bytes] = []
        self.joiner = Joiner(self, self.final.append, lambda: self.now)
        self.open: set[str] = set()

    def settle(self, request_id: str, cached: int | None) -> bytes | None:
        assert request_id not in self.settled, "closed twice"
        self.settled[request_id] = cached
        return request_id.encode() if request_id in self.open else None

    def ends(self, name: str, tokens: int | None, generated: int | None = None, lasted: float = 1.0) -> None:
        self.open.add(name)
        usage = {"prompt_tokens": tokens, "completion_tokens": generated, "cached_tokens": None}
        self.joiner.pending({"request_id": name, "usage": usage, "duration_seconds": lasted})

    def line(self, tokens: int, reused: int, generated: int | None = None) -> None:
        self.joiner.line(PromptRead(tokens, reused, tokens - reused, None, generated))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.1)
            self.joiner.tick()

    def counts(self) -> dict[str, int]:
        return {how: count for how, count in self.joiner.counts.items() if count}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_line_after_the_end(bench: Bench) -> None:
    bench.ends("a", 1000)
    assert bench.settled == {}
    bench.now += 0.2
    bench.line(1000, 900)
    assert bench.settled == {"a": 900}
    assert bench.final == [b"a"]
    assert bench.counts() == {"joined": 1}


def test_the_line_before_the_end(bench: Bench) -> None:
    bench.line(1000, 900)
    bench.now += 0.3
    bench.ends("a", 1000)
    assert bench.settled == {"a": 900}


def test_several_at_once_by_their_sizes(bench: Bench) -> None:
    for name, tokens in (("a", 1000), ("b", 2000), ("c", 3000)):
        bench.ends(name, tokens)
    for tokens in (3000, 1000, 2000):
        bench.line(tokens, tokens - 100)
    assert bench.settled == {"a": 900, "b": 1900, "c": 2900}


def test_one_size_told_apart_by_what_was_generated(bench: Bench) -> None:
    bench.ends("a", 1000, 50)
    bench.ends("b", 1000, 7)
    bench.line(1000, 10, 7)
    bench.line(1000, 900, 51)
    assert bench.settled == {"a": 900, "b": 10}
    assert bench.counts() == {"joined": 2}


def test_one_size_and_one_answer_need_no_telling_apart(bench: Bench) -> None:
    bench.ends("a", 1000)
    bench.ends("b", 1000)
    bench.line(1000, 900)
    assert bench.settled == {}, "one line for two"
    bench.line(1000, 900)
    assert bench.settled == {"a": 900, "b": 900}


def test_an_ambiguous_join_is_said_to_be_one(bench: Bench) -> None:
    bench.ends("a", 1000)
    bench.ends("b", 1000)
    bench.line(1000, 900)
    bench.line(1000, 10)
    bench.wait(WAIT_SECONDS + 0.1)
    assert bench.settled["a"] is None
    assert bench.counts()["ambiguous"] >= 1
    assert len(bench.joiner) == 0


def test_no_line_at_all(bench: Bench) -> None:
    bench.ends("a", 1000)
    bench.wait(WAIT_SECONDS - 0.2)
    assert bench.settled == {}
    bench.wait(0.4)
    assert bench.settled == {"a": None}
    assert bench.counts() == {"unmatched": 1}


def test_a_line_that_comes_too_late(bench: Bench) -> None:
    bench.ends("a", 1000)
    bench.wait(WAIT_SECONDS + 0.1)
    bench.line(1000, 900)
    assert bench.counts() == {"unmatched": 1, "late": 1}
    bench.ends("b", 1000)
    bench.wait(WAIT_SECONDS + 0.1)
    assert bench.settled == {"a": None, "b": None}, "and it is nobody else's"


def test_a_line_from_before_the_exchange_began_is_not_its(bench: Bench) -> None:
    bench.line(1000, 10)
    bench.now += 5
    bench.ends("a", 1000, lasted=2)
    assert bench.settled == {}
    bench.line(1000, 900)
    assert bench.settled == {"a": 900}


def test_a_line_from_long_before_the_end_waits_for_a_better_one(bench: Bench) -> None:
    bench.line(1000, 10)
    bench.now += 20
    bench.ends("a", 1000, lasted=25)
    assert bench.settled == {}
    bench.now += 0.1
    bench.line(1000, 900)
    assert bench.settled == {"a": 900}


def test_a_slow_client_gets_its_line_all_the_same(bench: Bench) -> None:
    bench.line(1000, 900)
    bench.now += 20
    bench.ends("a", 1000, lasted=25)
    bench.wait(WAIT_SECONDS + 0.1)
    assert bench.settled == {"a": 900}


def test_an_exchange_of_unknown_size_takes_the_only_line(bench: Bench) -> None:
    bench.ends("a", None)
    bench.line(1234, 1000)
    assert bench.settled == {"a": 1000}


def test_an_exchange_of_unknown_size_leaves_others_theirs(bench: Bench) -> None:
    bench.ends("a", None)
    bench.ends("b", 2000)
    bench.line(2000, 1900)
    bench.line(1234, 1000)
    assert bench.settled == {"a": 1000, "b": 1900}


def test_two_of_unknown_size_are_not_guessed(bench: Bench) -> None:
    bench.ends("a", None)
    bench.ends("b", None)
    bench.line(1234, 1000)
    bench.line(777, 5)
    bench.wait(WAIT_SECONDS + 0.1)
    assert bench.settled["a"] is None


def test_lines_that_nobody_asks_for(bench: Bench) -> None:
    bench.line(1000, 900)
    bench.wait(KEEP_SECONDS + 1)
    assert bench.counts() == {"unclaimed": 1}
    bench.ends("a", 1000, lasted=60)
    bench.wait(WAIT_SECONDS + 0.1)
    assert bench.settled == {"a": None}


def test_the_end_of_the_process(bench: Bench) -> None:
    bench.ends("a", 1000)
    bench.ends("b", 2000)
    bench.joiner.give_up()
    assert bench.settled == {"a": None, "b": None}


def test_what_is_kept_is_bounded(bench: Bench) -> None:
    for number in range(2000):
        bench.ends(f"r{number}", 10_000 + number)
        bench.line(50_000 + number, 5)
    assert len(bench.joiner) <= 512
    bench.wait(WAIT_SECONDS + 0.1)
    assert len(bench.settled) == 2000


def test_a_record_without_usage(bench: Bench) -> None:
    bench.joiner.pending({"request_id": "a"})
    bench.wait(WAIT_SECONDS + 0.1)
    assert bench.settled == {"a": None}


def play(seed: int, sizes: int) -> tuple[Bench, dict[str, int], set[str]]:
    """A batch engine: lines come early, late or not at all. Returns what was true, and who had a line in time."""
    chance, bench = random.Random(seed), Bench()
    happenings: list[tuple[float, Any]] = []
    truth: dict[str, int] = {}
    lined = set()
    for number in range(20):
        end, name = chance.uniform(0, 60), f"r{number}"
        tokens = 1000 + (number if sizes > 20 else chance.randrange(sizes))
        generated, reused = chance.randint(1, 4), chance.choice([0, 500, 900])
        truth[name] = reused
        happenings.append((end, ("ends", name, tokens, generated)))
        if chance.random() < 0.9:
            lined.add(name)
            happenings.append((end + chance.uniform(-0.3, 0.9), ("line", tokens, reused, generated)))
    for at, happening in sorted(happenings, key=lambda each: each[0]):
        bench.wait(max(0.0, 100 + at - bench.now))
        if happening[0] == "ends":
            bench.ends(happening[1], happening[2], happening[3], lasted=1.0)
        else:
            bench.line(*happening[1:])
    bench.wait(WAIT_SECONDS + 0.2)
    return bench, truth, lined


@given(st.integers(0, 2**32))
def test_with_sizes_of_their_own_all_are_joined_rightly(seed: int) -> None:
    bench, truth, lined = play(seed, sizes=1000)
    assert bench.settled == {name: reused if name in lined else None for name, reused in truth.items()}


@given(st.integers(0, 2**32))
def test_with_sizes_that_repeat_every_exchange_is_closed_once(seed: int) -> None:
    bench, truth, _ = play(seed, sizes=3)
    assert bench.settled.keys() == truth.keys()
    assert sum(bench.joiner.counts[how] for how in ("joined", "ambiguous", "unmatched")) == 20

"""What became of each prompt, by the engine's own counters, and Foreword's verdict held to it.

The oracle takes nothing from the sidecar but the record under test. That a request goes on from another one is known
from the recording; what was reused is the growth of the engine's counters while nobody else asks it anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.http.sidecar import Sidecar
from tests.real.engine.recorded import Request
from tests.real.engine.server import BLOCK, Server

Json = dict[str, Any]

LEAST = 64
"""Tokens that Foreword's own place of a difference is coarse by: a block of 256 bytes."""


@dataclass(frozen=True)
class Seen:
    """One exchange: the prompt as the engine counted it, and what the sidecar made of it. All in tokens."""

    prompt: int
    cached: int
    record: Json

    @property
    def verdict(self) -> Json:
        verdict: Json = self.record["verdict"]
        return verdict

    @property
    def tolerance(self) -> float:
        """Of a place that is estimated."""
        return max(BLOCK, LEAST) + 0.02 * self.prompt

    def expected(self, before: Seen) -> int:
        """What a cache that forgot nothing had of an intact prompt."""
        return min(before.prompt, self.prompt - 1) // BLOCK * BLOCK

    def __str__(self) -> str:
        told = {
            key: self.verdict[key] for key in ("name", "expected", "shared", "lost", "path", "class", "kind")
        }
        return f"prompt {self.prompt}, cached {self.cached}: {told}"


def counters(engine: Server) -> tuple[int, int]:
    """Tokens of all prompts so far, and how many of them came from the cache."""
    asked, hit = (engine.metric(f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits"))
    return int(asked), int(hit)


@dataclass
class Witness:
    """Sends one request after the other and writes down what the engine says of each."""

    engine: Server
    sidecar: Sidecar
    reports: bool = True
    """Whether the engine's answers tell what was cached; its counters always do."""
    seen: list[Seen] = field(default_factory=list)

    def send(self, request: Request) -> Seen:
        before = counters(self.engine)
        answer = self.sidecar.post(request.path, request.body, request.headers)
        assert answer.status == 200, answer.body
        record = self.sidecar.record(answer)
        prompt, cached = (now - then for now, then in zip(counters(self.engine), before, strict=True))
        # Raw stays raw: the record has the engine's own numbers, and none where it told none.
        reported = cached if self.reports else None
        assert (record["usage"]["prompt_tokens"], record["usage"]["cached_tokens"]) == (prompt, reported)
        self.seen.append(Seen(prompt, cached, record))
        return self.seen[-1]

    def send_all(self, requests: Iterable[Request]) -> list[Seen]:
        return [self.send(request) for request in requests]


def begins(now: Seen) -> None:
    """A conversation of which nothing was sent before. Its head may be another's."""
    assert now.verdict["name"] == "first", now
    assert (now.verdict["lost"], now.verdict["path"]) == (0, None), now
    assert abs(now.verdict["shared"] - now.cached) <= now.tolerance, now


def goes_on(before: Seen, now: Seen) -> None:
    """The prompt begins with all of the earlier one.

    The last block is anyone's: the earlier prompt ended with the opening of an answer, whose last token may become one
    with what the answer begins with.
    """
    expected = now.expected(before)
    lost = max(0, expected - now.cached)
    assert lost <= BLOCK, f"the engine shows that it does not go on: {now}"
    assert now.verdict["name"] == ("granularity" if lost else "append-only"), now
    assert (now.verdict["lost"], now.verdict["expected"], now.verdict["exact"]) == (lost, expected, True), now
    assert now.verdict["path"] is None, now


def changed(before: Seen, now: Seen, path: str, cls: str, kind: str) -> None:
    """A part of the earlier prompt is another one now: the engine reused what stands in front of it."""
    told = now.verdict
    expected = now.expected(before)
    assert (told["name"], told["path"], told["class"], told["kind"]) == ("changed", path, cls, kind), now
    assert (told["lost"], told["expected"], told["exact"]) == (expected - now.cached, expected, True), now
    assert abs(told["shared"] - now.cached) <= now.tolerance, now


def compacted(now: Seen) -> None:
    """Most of what was said is replaced: nobody lost anything."""
    assert (now.verdict["name"], now.verdict["lost"], now.verdict["path"]) == ("compacted", 0, None), now
    assert abs(now.verdict["shared"] - now.cached) <= now.tolerance, now


def lost_by_engine(before: Seen, now: Seen) -> None:
    """The prompt is intact, and the engine forgot it."""
    lost = now.expected(before) - now.cached
    assert now.verdict["name"] == "engine-lost", now
    assert (now.verdict["lost"], now.verdict["path"], now.verdict["exact"]) == (lost, None, True), now

"""Hit rates of the conversation, measured on an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import pytest
from tests.http.sidecar import Response
from tests.real.engine.server import BLOCK, LateSystem, Used
from tests.real.engine.trace import REQUESTS
from tests.real.engine.versions import NEW, OLD, USED

Json = dict[str, Any]


class Target(Protocol):
    """An engine, or a sidecar in front of it."""

    def post(self, path: str, body: Json) -> Response: ...


def on(*versions: str, late_system: LateSystem = "in-place", reports: bool = True) -> pytest.MarkDecorator:
    """Runs a test on these versions of the engine."""
    silent = "" if reports else "-silent"
    parameters = [
        pytest.param((version, late_system, reports), id=f"vllm-{version}-{late_system}{silent}")
        for version in versions
    ]
    return pytest.mark.parametrize("engine", parameters, indirect=True, scope="session")


ON_OLD, ON_NEW, ON_BOTH = on(OLD), on(NEW), on(*USED)


def chat_used(answer: Response) -> Used:
    assert answer.status == 200, answer.body
    return Used.of(answer.json())


def messages_used(answer: Response) -> Used:
    assert answer.status == 200, answer.body
    usage = answer.json()["usage"]
    cached = usage.get("cache_read_input_tokens") or 0
    prompt = usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0)
    return Used(prompt, cached, usage["output_tokens"])


def run(target: Target, request: Callable[[int], Json], dialect: str = "chat") -> list[Used]:
    """Sends all requests of the conversation, one after the other."""
    if dialect == "chat":
        return [chat_used(target.post("/v1/chat/completions", request(n))) for n in range(1, REQUESTS + 1)]
    return [messages_used(target.post("/v1/messages", request(n))) for n in range(1, REQUESTS + 1)]


def hit_rate(used: Iterable[Used]) -> float:
    counted = list(used)
    return sum(one.cached for one in counted) / sum(one.prompt for one in counted)


def reuses_all(used: list[Used]) -> bool:
    """Whether each request found all of the one before it in the cache, in whole blocks."""
    return all(later.cached >= earlier.prompt // BLOCK * BLOCK for earlier, later in pairwise(used))


@dataclass
class Rows:
    lines: list[tuple[str, str, str, float, int, int]] = field(default_factory=list)

    def add(self, version: str, what: str, way: str, used: list[Used]) -> None:
        cached, prompt = sum(one.cached for one in used), sum(one.prompt for one in used)
        self.lines.append((version, what, way, hit_rate(used), cached, prompt))

    def table(self) -> Iterable[str]:
        yield f"{'vLLM':8} {'what the client sends':44} {'way':10} {'hit rate':>8} {'cached':>8} {'prompt':>8}"
        for version, what, way, rate, cached, prompt in self.lines:
            yield f"{version:8} {what:44} {way:10} {rate:8.1%} {cached:8} {prompt:8}"

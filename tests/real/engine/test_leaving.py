"""A client that leaves must not keep the engine busy."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.http.sidecar import Sidecar, Stream
from tests.real.conftest import StartSidecar
from tests.real.engine.measure import ON_NEW
from tests.real.engine.server import MODEL, Server, script

ABORT_SECONDS = 3.0
"""The engine finishes the step that it is in before it drops a request."""

WORDS = 800
"""In the answer that nobody waits for: at 50 ms a word, 40 s."""

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def _start(sidecar: Sidecar, dialect: str, text: str, **fields: Any) -> Stream:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1000, **fields}
    return sidecar.open("POST", PATHS[dialect], body)


@ON_NEW
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("dialect", PATHS)
def test_during_prefill(engine: Server, start_sidecar: StartSidecar, dialect: str, *, stream: bool) -> None:
    sidecar = start_sidecar(engine.url)
    engine.forget()
    before = engine.metric("vllm:prompt_tokens_total")
    with _start(sidecar, dialect, "return the value of each line " * 9_000, stream=stream) as exchange:
        assert _wait(lambda: engine.running() == 1, 20)
        exchange.leave()
    assert _wait(lambda: engine.running() == 0, ABORT_SECONDS)
    assert engine.metric("vllm:prompt_tokens_total") == before, "the prompt was computed to its end"
    record = sidecar.wait_for_record(outcome="left")
    assert record["usage"]["prompt_tokens"] is None


@ON_NEW
@pytest.mark.parametrize("dialect", PATHS)
def test_in_mid_stream(engine: Server, start_sidecar: StartSidecar, dialect: str) -> None:
    sidecar = start_sidecar(engine.url)
    before = engine.metric("vllm:generation_tokens_total")
    with _start(sidecar, dialect, script("</think>" + "word " * WORDS, delay=0.05), stream=True) as exchange:
        exchange.read_until(b'" word"')
        assert engine.running() == 1
        exchange.leave()
    assert _wait(lambda: engine.running() == 0, ABORT_SECONDS)
    assert 1 <= engine.metric("vllm:generation_tokens_total") - before < WORDS / 2
    sidecar.wait_for_record(outcome="left")

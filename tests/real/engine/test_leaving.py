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

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def _aborted(engine: Server) -> float:
    return engine.metric("vllm:request_success_total", finished_reason="abort")


def _start(sidecar: Sidecar, dialect: str, text: str, **fields: Any) -> Stream:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1000, **fields}
    return sidecar.open("POST", PATHS[dialect], body)


@ON_NEW
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("dialect", PATHS)
def test_during_prefill(engine: Server, start_sidecar: StartSidecar, dialect: str, *, stream: bool) -> None:
    sidecar = start_sidecar(engine.url)
    engine.forget()
    before = _aborted(engine)
    with _start(sidecar, dialect, "return the value of each line " * 9_000, stream=stream) as exchange:
        assert _wait(lambda: engine.running() == 1, 20)
        exchange.leave()
    assert _wait(lambda: engine.running() == 0, ABORT_SECONDS)
    assert _aborted(engine) == before + 1
    record = sidecar.wait_for_record(outcome="left")
    assert record["usage"]["prompt_tokens"] is None


@ON_NEW
@pytest.mark.parametrize("dialect", PATHS)
def test_in_mid_stream(engine: Server, start_sidecar: StartSidecar, dialect: str) -> None:
    sidecar = start_sidecar(engine.url)
    before = _aborted(engine)
    text = "</think>" + "word " * 800
    with _start(sidecar, dialect, script(text, delay=0.05), stream=True) as exchange:
        exchange.read_until(b"word word")
        assert engine.running() == 1
        exchange.leave()
    assert _wait(lambda: engine.running() == 0, ABORT_SECONDS)
    assert _aborted(engine) == before + 1
    sidecar.wait_for_record(outcome="left")

"""The counts that a client gets are the engine's, in the terms of the client's dialect."""

from typing import Any

import pytest
from tests.http.sidecar import Sidecar
from tests.real.conftest import StartSidecar
from tests.real.engine import trace
from tests.real.engine.measure import ON_BOTH, Target
from tests.real.engine.server import Server, script

Json = dict[str, Any]

TALK = trace.conversation()
SAID = script("</think>Seven words are in this short answer.")
HEADER = "x-anthropic-billing-header: cc_version=2.1.116.fcf; cc_entrypoint=cli; cch=1a2b3;\n"


def _chat(**fields: Any) -> Json:
    return {**trace.chat(TALK, 1, f"{TALK.system} {SAID}"), "max_tokens": 100, **fields}


def _messages(**fields: Any) -> Json:
    return {**trace.messages(TALK, 1, f"{HEADER}{TALK.system} {SAID}"), "max_tokens": 100, **fields}


def _engine_usage(target: Target, **fields: Any) -> Json:
    answer = target.post("/v1/chat/completions", _chat(**fields))
    assert answer.status == 200, answer.body
    if fields.get("stream"):
        usage: Json = [
            data["usage"] for _, data in answer.events() if data != "[DONE]" and data.get("usage")
        ][-1]
        return usage
    whole: Json = answer.json()["usage"]
    return whole


def _client_usage(sidecar: Sidecar, **fields: Any) -> Json:
    answer = sidecar.post("/v1/messages", _messages(**fields))
    assert answer.status == 200, answer.body
    if fields.get("stream"):
        usage: Json = next(data["usage"] for name, data in answer.events() if name == "message_delta")
        return usage
    whole: Json = answer.json()["usage"]
    return whole


def _net(usage: Json) -> Json:
    """The engine's counts as the Messages API counts them."""
    details = usage["prompt_tokens_details"]
    cached, created = details["cached_tokens"], details.get("created_cache_tokens") or 0
    return {
        "input_tokens": usage["prompt_tokens"] - cached - created,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": created,
        "output_tokens": usage["completion_tokens"],
    }


STREAM: Json = {"stream": True, "stream_options": {"include_usage": True}}


@ON_BOTH
@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_both_dialects(engine: Server, start_sidecar: StartSidecar, fields: Json, *, warm: bool) -> None:
    sidecar = start_sidecar(engine.url)
    messages_fields = {"stream": True} if fields else {}

    def state() -> None:
        engine.forget()
        if warm:
            _engine_usage(engine)

    state()
    raw = _engine_usage(engine, **fields)
    assert raw["completion_tokens"] > 7
    assert (raw["prompt_tokens_details"]["cached_tokens"] > 0) == warm
    state()
    assert _engine_usage(sidecar, **fields) == raw
    state()
    got = _client_usage(sidecar, **messages_fields)
    assert {key: got[key] for key in _net(raw)} == _net(raw)
    record = sidecar.wait_for_record(route="messages")["usage"]
    assert record["prompt_tokens"] == raw["prompt_tokens"]
    assert record["cached_tokens"] == raw["prompt_tokens_details"]["cached_tokens"]


@ON_BOTH
def test_raw(engine: Server, start_sidecar: StartSidecar) -> None:
    sidecar = start_sidecar(engine.url, USAGE="raw")
    _engine_usage(engine)
    raw = _engine_usage(engine)
    got = _client_usage(sidecar, stream=True)
    assert got["input_tokens"] == raw["prompt_tokens"]
    assert got["cache_read_input_tokens"] == raw["prompt_tokens_details"]["cached_tokens"] > 0


@ON_BOTH
@pytest.mark.parametrize("requests", [1, 2, 7, trace.REQUESTS])
def test_count_tokens(engine: Server, start_sidecar: StartSidecar, requests: int) -> None:
    sidecar = start_sidecar(engine.url)
    body = trace.messages(TALK, requests, f"{HEADER}{TALK.system}")
    usage = sidecar.post("/v1/messages", body).json()["usage"]
    counted = sidecar.post("/v1/messages/count_tokens", {k: v for k, v in body.items() if k != "max_tokens"})
    assert counted.status == 200, counted.body
    used = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert counted.json()["input_tokens"] == used

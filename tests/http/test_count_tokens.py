"""/v1/messages/count_tokens: the engine's count, or an estimate that says that it is one."""

import re

import pytest

from .conftest import StartSidecar
from .engine import (
    Answer,
    ScriptedEngine,
    answers,
)
from .sidecar import Sidecar

COUNT = "/v1/messages/count_tokens"


def test_tokens_are_counted_by_the_engine(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, {"count": 1234, "max_model_len": 65536, "tokens": [1, 2]})
    tools = [{"name": "now", "description": "d", "input_schema": {"type": "object", "properties": {}}}]
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "system": "S", "tools": tools}
    answer = sidecar.post(f"{COUNT}?beta=true", body)
    assert answer.json() == {"input_tokens": 1234}
    assert "tokens=estimated" not in answer.headers.get("x-foreword", "")
    request = engine.requests[0]
    assert (request.method, request.target) == ("POST", "/tokenize")
    sent = request.json()
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["tools"][0]["function"]["name"] == "now"


@pytest.mark.parametrize("kind", ["strata", "sglang"])
def test_other_engines_count_at_their_own_endpoint(
    sidecar_with: StartSidecar, engine: ScriptedEngine, kind: str
) -> None:
    engine.answer = answers(200, {"input_tokens": 77})
    answer = sidecar_with(ENGINE=kind).post(
        COUNT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    )
    assert answer.json() == {"input_tokens": 77}
    assert engine.requests[0].target == COUNT


@pytest.mark.parametrize(
    "reply",
    [
        answers(404, b'{"detail":"Not Found"}'),
        answers(404, b"<html>"),
        answers(405, b""),
        answers(501, b"{}"),
        answers(200, b"{}"),
        answers(200, b"<html>"),
    ],
)
def test_an_estimate_says_that_it_is_one(sidecar: Sidecar, engine: ScriptedEngine, reply: Answer) -> None:
    engine.answer = reply
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * 1000}]}
    answer = sidecar.post(COUNT, body)
    assert answer.status == 200
    assert 500 <= answer.json()["input_tokens"] <= 2500
    assert "tokens=estimated" in re.split(r"[;, ]+", answer.headers["x-foreword"])


def test_an_unreachable_engine_cannot_count(start_sidecar: StartSidecar) -> None:
    sidecar = start_sidecar("http://127.0.0.1:9")
    answer = sidecar.post(COUNT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert answer.status in (200, 502, 503)
    if answer.status == 200:
        assert "tokens=estimated" in answer.headers["x-foreword"]
    else:
        assert answer.json()["type"] == "error"


def test_a_wrong_count_request_is_refused(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    message = "The model `nope` does not exist."
    engine.answer = answers(404, {"error": {"message": message, "type": "NotFoundError", "code": 404}})
    answer = sidecar.post(COUNT, {"model": "nope", "messages": [{"role": "user", "content": "hi"}]})
    assert (answer.status, answer.json()["error"]["message"]) == (404, message)

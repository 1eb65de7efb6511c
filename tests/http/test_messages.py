"""/v1/messages over HTTP: what an Anthropic client reads of an engine's chat, or of its own /v1/messages."""

import json
import re
from typing import Any

import pytest

from .anthropic_stream import NET, ZEROS, data, names, text_of
from .conftest import StartSidecar
from .engine import (
    HALF,
    USAGE,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chat_chunk,
    chunked,
    completion,
    event,
    respond,
    says,
    stream_head,
    streams,
)
from .sidecar import MESSAGES, Sidecar, ask

USAGE_CHUNK = event({"id": "c", "choices": [], "usage": USAGE})
DONE = event("[DONE]")


def test_a_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("one two")
    answer = sidecar.post(MESSAGES, ask())
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert names(answer) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(name == data["type"] for name, data in answer.events()), "event: lines always, and true"
    start = data(answer, "message_start")[0]["message"]
    assert re.fullmatch(r"msg_[0-9A-Za-z]{24}", start.pop("id"))
    assert start == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": ZEROS,  # never an estimate, never the whole prompt
    }
    assert text_of(answer) == "one two "
    end = data(answer, "message_delta")[0]
    assert end == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": NET,
    }
    record = sidecar.record(answer)
    assert (record["outcome"], record["finish"], record["stream"]) == ("ok", "stop", True)
    assert record["usage"]["prompt_tokens"] == 100, "raw stays raw"


@pytest.mark.parametrize("status", [400, 500])
def test_a_refused_effort_is_left_out_and_remembered(
    sidecar_with: StartSidecar, engine: ScriptedEngine, status: int
) -> None:
    sidecar = sidecar_with(IDLE_SECONDS=str(500 + status))  # its own process: what is learnt stays

    def answer(peer: Peer, request: Received) -> None:
        if request.json().get("reasoning_effort") == "high":
            text = "Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low."
            peer.send(respond(status, {"error": {"message": text, "code": status}}))
        else:
            says("hi")(peer, request)

    engine.answer = answer
    for effort in ("high", "max", "low"):
        answered = sidecar.post(MESSAGES, ask(output_config={"effort": effort}))
        assert (answered.status, text_of(answered)) == (200, "hi ")
    sent = [request.json().get("reasoning_effort") for request in engine.requests]
    assert sent == ["high", None, None, "low"]


def test_a_whole_message(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("one two")
    answer = sidecar.post(MESSAGES, ask(stream=False))
    assert answer.headers["content-type"] == "application/json"
    message = answer.json()
    assert re.fullmatch(r"msg_[0-9A-Za-z]{24}", message.pop("id"))
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "one two"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": NET,
    }


def test_ids_are_fresh(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    answers_ = [sidecar.post(MESSAGES, ask(stream=False)) for _ in range(5)]
    assert len({answer.json()["id"] for answer in answers_}) == 5
    assert len({answer.headers["request-id"] for answer in answers_}) == 5


@pytest.mark.parametrize("stream", [True, False])
def test_raw_usage(sidecar_with: StartSidecar, engine: ScriptedEngine, stream: bool) -> None:
    engine.answer = says("hi")
    answer = sidecar_with(USAGE="raw").post(MESSAGES, ask(stream))
    usage = data(answer, "message_delta")[0]["usage"] if stream else answer.json()["usage"]
    assert usage == {**NET, "input_tokens": 100}


@pytest.mark.parametrize("stream", [True, False])
def test_usage_that_the_engine_did_not_report(sidecar: Sidecar, engine: ScriptedEngine, stream: bool) -> None:
    engine.answer = says("hi", {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105})
    answer = sidecar.post(MESSAGES, ask(stream))
    usage = data(answer, "message_delta")[0]["usage"] if stream else answer.json()["usage"]
    assert usage == {**ZEROS, "input_tokens": 100, "output_tokens": 5}
    recorded = sidecar.record(answer)["usage"]
    assert (recorded["cached_tokens"], recorded["created_tokens"]) == (None, None), "absent is not zero"


def test_usage_that_is_known_at_the_start(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = streams(
        event(chat_chunk({"content": "a"}, usage=USAGE)), event(chat_chunk({}, "stop")), DONE
    )
    start = data(sidecar.post(MESSAGES, ask()), "message_start")[0]["message"]["usage"]
    assert {**start, "output_tokens": 5} == NET


CALLS = [
    event(chat_chunk({"role": "assistant", "content": ""})),
    event(chat_chunk({"reasoning": "hm "})),
    event(chat_chunk({"reasoning_content": "so"})),
    event(chat_chunk({"content": "Look:"})),
    event(
        chat_chunk(
            {"tool_calls": [{"id": "call_a", "type": "function", "index": 0, "function": {"name": "read"}}]}
        )
    ),
    event(chat_chunk({"content": None, "tool_calls": [{"index": 0, "function": {"arguments": '{"path":'}}]})),
    event(chat_chunk({"content": None, "tool_calls": [{"index": 0, "function": {"arguments": '"a"}'}}]})),
    event(
        chat_chunk(
            {"tool_calls": [{"id": "call_b", "type": "function", "index": 1, "function": {"name": "ls"}}]}
        )
    ),
    event(chat_chunk({"content": None, "tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]})),
    event(chat_chunk({}, "tool_calls")),
    USAGE_CHUNK,
    DONE,
]


def test_thinking_text_and_parallel_calls_in_a_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = streams(*CALLS)
    answer = sidecar.post(MESSAGES, ask())
    blocks = [start["content_block"] for start in data(answer, "content_block_start")]
    assert [(block["type"], block.get("id"), block.get("name")) for block in blocks] == [
        ("thinking", None, None),
        ("text", None, None),
        ("tool_use", "call_a", "read"),
        ("tool_use", "call_b", "ls"),
    ]
    joined: dict[int, str] = {}
    for delta in data(answer, "content_block_delta"):
        said = {key: text for key, text in delta["delta"].items() if key not in ("type", "signature")}
        joined[delta["index"]] = joined.get(delta["index"], "") + "".join(said.values())
    assert joined == {0: "hm so", 1: "Look:", 2: '{"path":"a"}', 3: "{}"}
    kinds = [delta["delta"]["type"] for delta in data(answer, "content_block_delta")]
    assert kinds.count("signature_delta") == 1
    assert [stop["index"] for stop in data(answer, "content_block_stop")] == [0, 1, 2, 3]
    assert data(answer, "message_delta")[0]["delta"]["stop_reason"] == "tool_use"


def test_thinking_text_and_parallel_calls_whole(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    calls = [
        {"id": "call_a", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}},
        {"id": "call_b", "type": "function", "function": {"name": "ls", "arguments": ""}},
    ]
    message = {"content": "Look:", "reasoning": "hm so", "tool_calls": calls}
    engine.answer = answers(200, completion(message, finish="tool_calls"))
    answer = sidecar.post(MESSAGES, ask(stream=False)).json()
    assert [{**block, "signature": ""} if "signature" in block else block for block in answer["content"]] == [
        {"type": "thinking", "thinking": "hm so", "signature": ""},
        {"type": "text", "text": "Look:"},
        {"type": "tool_use", "id": "call_a", "name": "read", "input": {"path": "a"}},
        {"type": "tool_use", "id": "call_b", "name": "ls", "input": {}},
    ]
    assert answer["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("finish", "more", "stop"),
    [
        ("stop", {}, "end_turn"),
        ("length", {}, "max_tokens"),
        ("tool_calls", {}, None),
        ("content_filter", {}, "refusal"),
    ],
)
def test_stop_reasons(
    sidecar: Sidecar, engine: ScriptedEngine, finish: str, more: dict[str, Any], stop: str | None
) -> None:
    engine.answer = streams(HALF, event(chat_chunk({}, finish, **more)), DONE)
    delta = data(sidecar.post(MESSAGES, ask()), "message_delta")[0]["delta"]
    # A call that never came is no call: `tool_use` would make a client wait for its own tool.
    assert delta["stop_reason"] == (stop or "end_turn")


def test_a_stop_sequence_is_told(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    last = chat_chunk({}, "stop")
    last["choices"][0]["stop_reason"] = "END"
    engine.answer = streams(HALF, event(last), DONE)
    delta = data(sidecar.post(MESSAGES, ask(stop_sequences=["END"])), "message_delta")[0]["delta"]
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert engine.requests[0].json()["stop"] == ["END"]


@pytest.mark.case("B214")
def test_every_answer_says_who_and_what(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0.abc; cch=1a2b3;"}]
    plain = sidecar.post(MESSAGES, ask(stream=False))
    ruled = sidecar.post(
        MESSAGES, ask(system=system, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    )
    engine.answer = answers(400, {"error": {"message": "no"}})
    refused = sidecar.post(MESSAGES, ask(system=system))
    for answer in (plain, ruled, refused):
        assert re.fullmatch(r"req_[0-9a-zA-Z]{10,}", answer.headers["request-id"])
        assert answer.headers["x-foreword"]
    assert "rules=billing-header" in ruled.headers["x-foreword"]
    assert "web_search_20250305" in ruled.headers["x-foreword"]
    assert "rules=billing-header" in refused.headers["x-foreword"]
    assert refused.json()["request_id"] == refused.headers["request-id"]


def named(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


START: dict[str, Any] = {
    "id": "msg_e",
    "type": "message",
    "role": "assistant",
    "model": "real",
    "content": [],
    "usage": None,
}
NATIVE = {
    "start": named("message_start", message={**START, "usage": {"input_tokens": 100, "output_tokens": 0}}),
    "text": named("content_block_start", index=0, content_block={"type": "text", "text": ""})
    + named("content_block_delta", index=0, delta={"type": "text_delta", "text": "one "})
    + named("content_block_stop", index=0),
    "end": named(
        "message_delta",
        delta={"stop_reason": "end_turn", "stop_sequence": None},
        usage={
            "input_tokens": 4,
            "output_tokens": 5,
            "cache_read_input_tokens": 64,
            "cache_creation_input_tokens": 32,
        },
    ),
    "stop": named("message_stop"),
}


def test_native_streams_with_usage_put_right(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    engine.answer = streams(*NATIVE.values())
    sidecar = sidecar_with(MESSAGES="native")
    body = (
        b'{ "model":"m","max_tokens":64.0,"stream":true, "messages":[ {"role":"user","content":"\\u0041"} ] }'
    )
    answer = sidecar.post(f"{MESSAGES}?beta=true", body, {"anthropic-version": "2023-06-01"})
    request = engine.requests[0]
    assert (request.target, request.body) == (f"{MESSAGES}?beta=true", body)
    assert request.header("anthropic-version") == "2023-06-01"
    assert data(answer, "message_start")[0]["message"]["usage"] == ZEROS
    assert data(answer, "message_delta")[0]["usage"] == NET
    middle = answer.body.index(b"event: content_block_start")
    assert answer.body[middle:].startswith(NATIVE["text"])
    assert sidecar.record(answer)["usage"]["prompt_tokens"] == 100


def test_native_requests_are_normalised(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, {**START, "usage": {"input_tokens": 1, "output_tokens": 1}})
    header = "x-anthropic-billing-header: cc_version=2.1.116.fcf; cc_entrypoint=sdk-cli; cch=5d5a2;"
    rest = '{"type":"text","text":"Identity"}]}'
    body = '{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}],"system":['
    answer = sidecar_with(MESSAGES="native").post(
        MESSAGES, f'{body}{{"type":"text","text":"{header}"}},{rest}'.encode()
    )
    assert engine.requests[0].body == (body + rest).encode()
    assert "billing-header" in answer.headers["x-foreword"]


def test_a_native_cut_is_an_error_event(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(NATIVE["start"] + NATIVE["text"]))
        peer.close()

    engine.answer = answer
    kinds = names(sidecar_with(MESSAGES="native").post(MESSAGES, ask()))
    assert kinds[-1] == "error"
    assert "message_stop" not in kinds


def test_a_native_refusal_takes_anthropics_form(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    said = (
        "This model's maximum context length is 65536 tokens. However, your request has 70000 input tokens."
    )
    told = "prompt is too long: 70000 tokens > 65536 maximum"
    engine.answer = answers(400, {"error": {"message": said, "type": "BadRequestError", "code": 400}})
    answer = sidecar_with(MESSAGES="native").post(MESSAGES, ask())
    assert answer.json()["error"] == {"type": "invalid_request_error", "message": told}

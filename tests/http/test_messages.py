"""/v1/messages over HTTP: what an Anthropic client reads of an engine's chat, its failures and its half answers."""

import gzip
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from .conftest import StartSidecar
from .engine import (
    END,
    USAGE,
    Answer,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chat_chunk,
    chat_events,
    chunked,
    completion,
    event,
    respond,
    says,
    stream_head,
    streams,
)
from .sidecar import Response, Sidecar

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
NET = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 32,
    "cache_read_input_tokens": 64,
    "output_tokens": 5,
}
ZEROS = dict.fromkeys(NET, 0)
ROLE = event(chat_chunk({"role": "assistant", "content": ""}))
HALF = ROLE + event(chat_chunk({"content": "half "}))
USAGE_CHUNK = event({"id": "c", "choices": [], "usage": USAGE})
DONE = event("[DONE]")


def ask(stream: bool = True, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "claude-x", "max_tokens": 64, "messages": messages, "stream": stream, **more}


def names(answer: Response) -> list[str]:
    return [name for name, _ in answer.events()]


def data(answer: Response, name: str) -> list[Any]:
    return [data for kind, data in answer.events() if kind == name]


def wholly(peer: Peer, _: Received, pieces: Iterable[bytes]) -> None:
    peer.send(stream_head())
    for piece in pieces:
        peer.send(chunked(piece))
    peer.send(END)


# ---- successes


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
        "model": "claude-x",
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


def test_a_whole_message(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("one two")
    answer = sidecar.post(MESSAGES, ask(stream=False))
    assert answer.headers["content-type"] == "application/json"
    message = answer.json()
    assert re.fullmatch(r"msg_[0-9A-Za-z]{24}", message.pop("id"))
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
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
    engine.answer = streams(event(chat_chunk({"content": "a"}, usage=USAGE)), event(chat_chunk({}, "stop")), DONE)
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
        chat_chunk({"tool_calls": [{"id": "call_b", "type": "function", "index": 1, "function": {"name": "ls"}}]})
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


def test_every_answer_says_who_and_what(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0.abc; cch=1a2b3;"}]
    plain = sidecar.post(MESSAGES, ask(stream=False))
    ruled = sidecar.post(MESSAGES, ask(system=system, tools=[{"type": "web_search_20250305", "name": "web_search"}]))
    engine.answer = answers(400, {"error": {"message": "no"}})
    refused = sidecar.post(MESSAGES, ask(system=system))
    for answer in (plain, ruled, refused):
        assert re.fullmatch(r"req_[0-9a-zA-Z]{10,}", answer.headers["request-id"])
        assert answer.headers["x-foreword"]
    assert "rules=billing-header" in ruled.headers["x-foreword"]
    assert "web_search_20250305" in ruled.headers["x-foreword"]
    assert "rules=billing-header" in refused.headers["x-foreword"]
    assert refused.json()["request_id"] == refused.headers["request-id"]


# ---- ends that the engine did or did not state


def cut_by(close: str) -> Answer:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(HALF))
        if close == "FIN":
            peer.close()
        elif close == "RST":
            peer.reset()
        elif close == "end of chunks":
            peer.send(END)
        elif close == "FIN in a chunk":
            peer.send(b"40\r\ndata: {")
            peer.close()

    return answer


@pytest.mark.parametrize("close", ["FIN", "RST", "end of chunks", "FIN in a chunk"])
def test_a_cut_is_an_error_event_and_no_end(sidecar: Sidecar, engine: ScriptedEngine, close: str) -> None:
    engine.answer = cut_by(close)
    answer = sidecar.post(MESSAGES, ask())
    kinds = names(answer)
    if answer.status != 200:
        # A reset may overtake what was sent before it; then nothing had been told yet.
        assert close == "RST"
        assert (answer.status, answer.json()["error"]["type"]) == (502, "api_error")
        return
    assert kinds[-1] == "error"
    assert kinds.count("error") == 1
    assert "message_stop" not in kinds
    assert "message_delta" not in kinds
    assert text_of(answer) == "half "
    error = data(answer, "error")[0]
    assert error["error"]["type"] == "api_error"
    assert sidecar.record(answer)["outcome"] == "engine-error"


@pytest.mark.parametrize("close", ["FIN", "end of chunks"])
def test_a_finish_without_done_is_an_end(sidecar: Sidecar, engine: ScriptedEngine, close: str) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(HALF + event(chat_chunk({}, "stop"))))
        if close == "FIN":
            peer.close()
        else:
            peer.send(END)

    engine.answer = answer
    answered = sidecar.post(MESSAGES, ask())
    assert names(answered)[-2:] == ["message_delta", "message_stop"]
    assert sidecar.record(answered)["outcome"] == "ok"


@pytest.mark.parametrize("tail", [b"", b": bye\n\n"])
def test_done_without_a_finish_is_an_end(sidecar: Sidecar, engine: ScriptedEngine, tail: bytes) -> None:
    engine.answer = streams(HALF, DONE + tail)
    assert names(sidecar.post(MESSAGES, ask()))[-2:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("pieces", [[], [b": ping\n\n"], [DONE]], ids=["nothing", "a comment", "only [DONE]"])
def test_an_empty_stream_is_an_error(sidecar: Sidecar, engine: ScriptedEngine, pieces: list[bytes]) -> None:
    engine.answer = streams(*pieces)
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]["type"]) == (502, "api_error")
    assert "empty" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("body", [b"", b"  \n", b"<html>welcome</html>", b"[]", b"{}", b'"x"'])
def test_a_200_without_an_answer_is_an_error(
    sidecar: Sidecar, engine: ScriptedEngine, body: bytes, stream: bool
) -> None:
    engine.answer = answers(200, body)
    answer = sidecar.post(MESSAGES, ask(stream))
    assert (answer.status, answer.json()["type"]) == (502, "error")


@pytest.mark.parametrize("stream", [True, False])
def test_half_an_answer_with_a_length(sidecar: Sidecar, engine: ScriptedEngine, stream: bool) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(respond(200, completion({"content": "hi"}))[:-20])
        peer.close()

    engine.answer = answer
    answered = sidecar.post(MESSAGES, ask(stream))
    assert (answered.status, answered.json()["error"]["type"]) == (502, "api_error")


def test_a_whole_answer_to_a_stream_request(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, completion({"content": "hi", "reasoning": "hm"}))
    answer = sidecar.post(MESSAGES, ask())
    assert answer.headers["content-type"] == "text/event-stream"
    kinds = names(answer)
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert text_of(answer) == "hi"
    assert data(answer, "message_delta")[0]["usage"] == NET


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
def test_a_stream_as_the_answer_to_a_whole_request(
    sidecar: Sidecar, engine: ScriptedEngine, content_type: str
) -> None:
    body = b"".join(chat_events("one two", USAGE))
    engine.answer = lambda peer, _: peer.send(respond(200, body, content_type=content_type))
    answer = sidecar.post(MESSAGES, ask(stream=False))
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["content"] == [{"type": "text", "text": "one two "}]
    assert answer.json()["usage"] == NET


@pytest.mark.parametrize("stream", [True, False])
def test_a_compressed_answer_is_read(sidecar: Sidecar, engine: ScriptedEngine, stream: bool) -> None:
    body = gzip.compress(json.dumps(completion({"content": "hi"})).encode())
    engine.answer = answers(200, body, ("content-encoding", "gzip"))
    answer = sidecar.post(MESSAGES, ask(stream))
    assert "content-encoding" not in answer.headers
    assert (text_of(answer) if stream else answer.json()["content"][0]["text"]) == "hi"


# ---- errors

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", TYPES)
def test_errors_by_status(sidecar: Sidecar, engine: ScriptedEngine, status: int, stream: bool) -> None:
    body = {"error": {"message": "The reason.", "type": "X", "param": None, "code": status}}
    engine.answer = answers(status, body)
    answer = sidecar.post(MESSAGES, ask(stream))
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "type": "error",
        "error": {"type": TYPES[status], "message": "The reason."},
        "request_id": answer.headers["request-id"],
    }


@pytest.mark.parametrize("name", ["err_context_length", "messages_err_context_length"])
def test_captured_overflows(sidecar: Sidecar, engine: ScriptedEngine, name: str, root: Any) -> None:
    path = root / "tests/fixtures/captures/vllm-0.32.0" / f"{name}.resp.txt"
    engine.answer = lambda peer, _: peer.send(path.read_bytes())
    answer = sidecar.post(MESSAGES, ask())
    assert answer.status == 400
    assert re.fullmatch(
        r"prompt is too long: \d+ tokens > \d+ maximum", answer.json()["error"]["message"]
    )


OVERFLOWS = {
    "This model's maximum context length is 65536 tokens. However, your request has 70000 input tokens. Please"
    " reduce the length of the input messages.": "prompt is too long: 70000 tokens > 65536 maximum",
    "request (9500 tokens) exceeds the available context size (8192 tokens), try increasing it": (
        "prompt is too long: 9500 tokens > 8192 maximum"
    ),
    "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 131072"
    " tokens and your request has 120000 input tokens (32000 > 131072 - 120000).": (
        "input length and `max_tokens` exceed context limit: 120000 + 32000 > 131072,"
        " decrease input length or `max_tokens` and try again"
    ),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 413, 500])
@pytest.mark.parametrize("said", OVERFLOWS)
def test_both_overflow_messages(
    sidecar: Sidecar, engine: ScriptedEngine, said: str, status: int, stream: bool
) -> None:
    engine.answer = answers(status, {"error": {"message": said, "type": "BadRequestError", "code": status}})
    answer = sidecar.post(MESSAGES, ask(stream))
    assert (answer.status, answer.json()["error"]) == (
        400,
        {"type": "invalid_request_error", "message": OVERFLOWS[said]},
    )


@pytest.mark.parametrize("value", ["7", "120", "Wed, 21 Oct 2026 07:28:00 GMT"])
@pytest.mark.parametrize("status", [429, 503, 529])
def test_retry_after_of_the_engine_is_kept(
    sidecar: Sidecar, engine: ScriptedEngine, status: int, value: str
) -> None:
    engine.answer = answers(status, {"error": {"message": "later"}}, ("Retry-After", value))
    assert sidecar.post(MESSAGES, ask()).headers["retry-after"] == value


@pytest.mark.parametrize("status", [502, 503, 404, 400])
def test_an_html_page_is_summed_up(sidecar: Sidecar, engine: ScriptedEngine, status: int) -> None:
    page = b"<html><head><title>nginx</title></head><body>secret host name</body></html>"
    engine.answer = lambda peer, _: peer.send(respond(status, page, content_type="text/html"))
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]["type"]) == (status, TYPES[status])
    message = answer.json()["error"]["message"]
    assert "HTML" in message
    assert "secret" not in message


def test_a_compressed_error_is_read(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    body = gzip.compress(b'{"error":{"message":"too many"}}')
    engine.answer = answers(429, body, ("content-encoding", "gzip"))
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]["message"]) == (429, "too many")
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        ({"message": "bad", "type": "BadRequestError", "param": None, "code": 400}, 400, "invalid_request_error"),
        ({"message": "boom", "type": "InternalServerError", "code": 500}, 500, "api_error"),
        ({"message": "busy", "type": "overloaded_error"}, 529, "overloaded_error"),
    ],
)
def test_an_error_that_comes_first_has_its_status(
    sidecar: Sidecar, engine: ScriptedEngine, error: dict[str, Any], status: int, kind: str
) -> None:
    engine.answer = streams(event({"error": error}), DONE)
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]) == (status, {"type": kind, "message": error["message"]})


def test_an_overflow_that_comes_first_in_a_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    said, told = next(iter(OVERFLOWS.items()))
    engine.answer = streams(event({"error": {"message": said, "type": "BadRequestError", "code": 400}}), DONE)
    answer = sidecar.post(MESSAGES, ask())
    assert (answer.status, answer.json()["error"]["message"]) == (400, told)


def test_an_error_in_mid_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    error = {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}
    engine.answer = streams(HALF, event({"error": error}), DONE)
    answer = sidecar.post(MESSAGES, ask())
    assert answer.status == 200
    assert names(answer)[-1] == "error"
    assert data(answer, "error")[0]["error"] == {"type": "api_error", "message": "EngineCore died"}
    assert "message_stop" not in names(answer)
    assert sidecar.record(answer)["outcome"] == "engine-error"


BAD = {
    "not JSON": (b'{"model":', "JSON"),
    "not UTF-8": (b'{"model":"\xff"}', "UTF-8"),
    "a list": (b"[]", "object"),
    "no model": (b'{"max_tokens":5,"messages":[{"role":"user","content":"x"}]}', "model"),
    "no messages": (b'{"model":"m","max_tokens":5}', "messages"),
    "no max_tokens": (b'{"model":"m","messages":[{"role":"user","content":"x"}]}', "max_tokens"),
    "a bad role": (b'{"model":"m","max_tokens":5,"messages":[{"role":"tool","content":"x"}]}', "messages.0.role"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_request_is_told_here(sidecar: Sidecar, engine: ScriptedEngine, name: str) -> None:
    body, said = BAD[name]
    answer = sidecar.post(MESSAGES, body)
    assert (answer.status, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert said in answer.json()["error"]["message"]
    assert not engine.requests
    assert sidecar.record(answer)["outcome"] == "client-error"


# ---- counting


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
    answer = sidecar_with(ENGINE=kind).post(COUNT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
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


# ---- native mode


def named(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


START = {"id": "msg_e", "type": "message", "role": "assistant", "model": "real", "content": [], "usage": None}
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
    body = b'{ "model":"m","max_tokens":64.0,"stream":true, "messages":[ {"role":"user","content":"\\u0041"} ] }'
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
    said, told = next(iter(OVERFLOWS.items()))
    engine.answer = answers(400, {"error": {"message": said, "type": "BadRequestError", "code": 400}})
    answer = sidecar_with(MESSAGES="native").post(MESSAGES, ask())
    assert answer.json()["error"] == {"type": "invalid_request_error", "message": told}


def text_of(answer: Response) -> str:
    deltas = [delta["delta"] for delta in data(answer, "content_block_delta")]
    return "".join(delta.get("text", "") for delta in deltas)

"""What passes through keeps every byte, but for the edits that docs and design list."""

import gzip
import json

import pytest

from .conftest import StartSidecar
from .engine import (
    USAGE,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chat_chunk,
    chat_events,
    chunked,
    event,
    models,
    respond,
    says,
    stream_head,
    streams,
)
from .sidecar import CHAT, Sidecar, ask

# Order, spacing, number spelling, duplicate keys and escapes that no JSON library would keep.
ODD = (
    b'{ "model" : "m",\n\t"messages":[{"role":"user","content":"\\u00e9\\/\xc3\xa9 \\ud83d\\ude42"}],'
    b'"temperature":1.10,"seed":12345678901234567890123,"x":-0,"y":1e2,"x":[ ],"stop":null }\n'
)


def passed(sidecar: Sidecar, engine: ScriptedEngine, path: str, body: bytes) -> Received:
    sidecar.post(path, body)
    return engine.wait_for(1)[-1]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize"])
def test_a_body_goes_upstream_byte_for_byte(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    engine.answer = answers(200, {"ok": True})
    request = passed(sidecar, engine, path, ODD)
    assert (request.method, request.target, request.body) == ("POST", path, ODD)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/rerank"])
def test_an_answer_comes_back_byte_for_byte(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    body = b'{ "object":"x","choices" :[{"index":0,"text":"\\u00e9\\/","finish_reason":"stop"}],"a":1.0,"a":1e2}\n\n'
    engine.answer = answers(200, body, ("x-own", "kept"), ("x-request-id", "abc"))
    answer = sidecar.post(path, ODD)
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-own"] == "kept"
    assert answer.headers["x-request-id"] == "abc"


def test_other_methods_pass(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, {"deleted": True})
    for method in ("GET", "DELETE", "PUT", "PATCH"):
        answer = sidecar.request(
            method, f"/v1/files/{method}?x=1", b"raw\x00bytes" if method == "PUT" else None
        )
        assert answer.json() == {"deleted": True}
    assert [request.method for request in engine.requests] == ["GET", "DELETE", "PUT", "PATCH"]
    assert engine.requests[2].body == b"raw\x00bytes"


@pytest.mark.parametrize(
    "target", ["/v1/responses/a%2Fb?x=%20&y=1+2&x=&z", "/slots/0?action=save", "/version"]
)
def test_paths_and_query_strings_are_kept(sidecar: Sidecar, engine: ScriptedEngine, target: str) -> None:
    engine.answer = answers(200, {"ok": True})
    sidecar.request("GET", target)
    assert engine.wait_for(1)[0].target == target


def test_the_query_of_a_translated_route_stays_here(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    sidecar.post(
        "/v1/messages?beta=true",
        {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    )
    assert engine.wait_for(1)[0].target == CHAT


STREAMS = {
    "lf": b"".join(chat_events("one two three", usage=None)),
    "crlf": b"".join(chat_events("one two", usage=None)).replace(b"\n", b"\r\n"),
    "comments": b": hello\n\n"
    + b"".join(chat_events("one", usage=None)).replace(b"\n\n", b"\n: between\n\n", 1),
    "odd fields": b"retry: 3000\nid: 7\n" + b"".join(chat_events("one", usage=None)),
    "odd frames": event('{"unknown":1}') + event("not json") + b"".join(chat_events("a", usage=None)),
    "no space": b"".join(chat_events("one two", usage=None)).replace(b"data: ", b"data:"),
    "needles in text": b"".join(chat_events('"usage" "error" "finish_reason":"stop" [DONE]', usage=None)),
    "odd numbers": b'data: {"choices" : [ {"index":0,"delta":{"content":"\\u00e9\\/"}, "finish_reason": "stop"} ],'
    b'"x":1e2,"x":1.10}\n\ndata: [DONE]\n\n',
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_passes_byte_for_byte(sidecar: Sidecar, engine: ScriptedEngine, name: str) -> None:
    engine.answer = streams(STREAMS[name])
    for body in (ask(), ask(stream_options={"include_usage": True})):
        answer = sidecar.post(CHAT, body)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.body == STREAMS[name]


def test_a_responses_stream_passes_byte_for_byte(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    kinds = ["response.created", "response.output_text.delta", "response.completed"]
    usage = {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
    text = b"".join(
        f"event: {kind}\ndata: ".encode()
        + json.dumps({"type": kind, "sequence_number": n, "response": {"id": "r", "usage": usage}}).encode()
        + b"\n\n"
        for n, kind in enumerate(kinds)
    )
    engine.answer = streams(text)
    answer = sidecar.post("/v1/responses", {"model": "m", "input": "hi", "stream": True})
    assert answer.body == text
    record = sidecar.record(answer)
    assert (record["outcome"], record["usage"]["cached_tokens"]) == ("ok", 4)


def test_injected_stream_options_leave_no_trace(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = streams(*chat_events("one two", usage=USAGE))
    body = b'{ "model":"m", "messages":[ ] ,"stream" : true }'
    answer = sidecar.post(CHAT, body)
    assert answer.body == b"".join(chat_events("one two", usage=None))
    sent = engine.requests[0].body
    added = b'"stream_options":{"include_usage":true}'
    assert added in sent
    assert sent.replace(b"," + added, b"") == body
    usage = sidecar.record(answer)["usage"]
    assert (usage["prompt_tokens"], usage["cached_tokens"], usage["created_tokens"]) == (100, 64, 32)


def test_a_stream_with_a_length_is_read_to_its_end(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    # What a cache or a stub in the engine's place sends. The usage that Foreword asked for is taken out again.
    whole = respond(200, b"".join(chat_events("one two", usage=USAGE)), content_type="text/event-stream")
    engine.answer = lambda peer, _: peer.send(whole)
    answer = sidecar.post(CHAT, ask())
    assert answer.body == b"".join(chat_events("one two", usage=None))
    assert "content-length" not in answer.headers


def test_usage_that_the_client_asked_for_is_left(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = streams(*chat_events("one two", usage=USAGE))
    body = json.dumps(ask(stream_options={"include_usage": True})).encode()
    answer = sidecar.post(CHAT, body)
    assert engine.requests[0].body == body
    assert answer.body == b"".join(chat_events("one two", usage=USAGE))


def test_usage_in_every_chunk_is_hidden_too(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    # `continuous_usage_stats` of an engine's default: the client did not ask for usage of any kind.
    events = [event(chat_chunk({"content": "a"}, usage=USAGE)), event(chat_chunk({}, "stop", usage=USAGE))]
    engine.answer = streams(*events, event("[DONE]"))
    answer = sidecar.post(CHAT, ask())
    assert [data for _, data in answer.events()] == [
        chat_chunk({"content": "a"}),
        chat_chunk({}, "stop"),
        "[DONE]",
    ]


def test_refused_stream_options_are_remembered(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(EARLY_HEAD_SECONDS="59")  # its own process: what is learnt stays

    def answer(peer: Peer, request: Received) -> None:
        if "stream_options" in request.json():
            refusal = {
                "error": {"message": "Unknown field stream_options", "type": "BadRequestError", "code": 400}
            }
            peer.send(respond(400, refusal))
        else:
            says("hi", usage=None)(peer, request)

    engine.answer = answer
    for _ in range(2):
        answered = sidecar.post(CHAT, ask())
        assert answered.body == b"".join(chat_events("hi", usage=None))
    asked = ["stream_options" in request.json() for request in engine.requests]
    assert asked == [True, False, False]


def test_a_clients_own_stream_options_are_its_own_fault(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    refusal = b'{"error":{"message":"stream_options is not supported"}}'
    engine.answer = answers(400, refusal)
    answer = sidecar.post(CHAT, ask(stream_options={"include_usage": True}))
    assert (answer.status, answer.body, len(engine.requests)) == (400, refusal, 1)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_mapped_models(sidecar_with: StartSidecar, engine: ScriptedEngine, path: str) -> None:
    sidecar = sidecar_with(MODEL_MAP="claude-*=real,gpt-?=other")
    engine.answer = answers(200, b'{ "id":1.0, "model" : "real" ,"choices":[]}')
    answer = sidecar.post(path, b'{ "model" : "claude-x" , "messages":[] }')
    assert engine.requests[0].body == b'{ "model" : "real" , "messages":[] }'
    assert answer.body == b'{ "id":1.0, "model" : "claude-x" ,"choices":[]}'


def test_a_mapped_stream_keeps_the_requested_name(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(MODEL_MAP="claude-*=m")
    pieces = list(chat_events("one two", usage=None))
    engine.answer = streams(*pieces)
    answer = sidecar.post(CHAT, {"model": "claude-x", "messages": [], "stream": True})
    assert answer.body == b"".join(pieces).replace(b'"model": "m"', b'"model": "claude-x"')
    assert engine.requests[0].json()["model"] == "m"


def test_the_only_model_stands_for_any_name(start_sidecar: StartSidecar) -> None:
    with ScriptedEngine() as engine:
        engine.probes = {"/v1/models": models("org/Only-1")}
        sidecar = start_sidecar(engine.url)
        sidecar.wait_until_ready()
        engine.answer = says("hi")
        answer = sidecar.post(CHAT, ask(False, model="claude-x"))
        assert engine.requests[-1].json()["model"] == "org/Only-1"
        assert answer.json()["model"] == "claude-x"
        sidecar.post(CHAT, ask(False, model="org/Only-1"))
        assert engine.requests[-1].json()["model"] == "org/Only-1"


HEADER = "x-anthropic-billing-header: cc_version=2.1.116.fcf; cc_entrypoint=sdk-cli; cch=5d5a2;"


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("join", ["\\n", "", "\\n\\n"])
def test_the_billing_header_goes_and_nothing_else(
    sidecar: Sidecar, engine: ScriptedEngine, role: str, join: str
) -> None:
    before = f'{{ "messages" : [{{"role":"{role}", "content":"'
    after = 'You are\\u0020a \\/ coding agent."}, {"role":"user","content":"x"}],"model":"m","seed":1.0 }'
    engine.answer = says("hi")
    answer = sidecar.post(CHAT, (before + HEADER + join + after).encode())
    assert engine.requests[0].body == (before + after).encode()
    assert "billing-header" in answer.headers["x-foreword"]
    assert sidecar.record(answer)["rules"] == ["billing-header"]


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings"])
def test_an_engines_error_passes(sidecar: Sidecar, engine: ScriptedEngine, path: str, status: int) -> None:
    body = b'{ "error":{"message":"maximum context length is 5 tokens, 9 input tokens","code":400.0}}\n'
    engine.answer = answers(status, body, ("retry-after", "7"), ("x-reason", "own"))
    answer = sidecar.post(path, ask())
    assert (answer.status, answer.body) == (status, body)
    assert (answer.headers["retry-after"], answer.headers["x-reason"]) == ("7", "own")
    assert sidecar.record(answer)["outcome"] == "refused"


@pytest.mark.case("B215")
@pytest.mark.parametrize("path", [CHAT, "/v1/files/1/content"])
def test_a_compressed_answer_passes_as_it_is(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    body = gzip.compress(b'{"choices":[]}')
    for status in (200, 400):
        engine.answer = answers(status, body, ("content-encoding", "gzip"))
        answer = sidecar.post(path, ask(False))
        assert (answer.status, answer.body, answer.headers["content-encoding"]) == (status, body, "gzip")


def test_a_stream_that_nobody_asked_for_passes(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    pieces = b"".join(chat_events("one two", usage=None))
    engine.answer = streams(pieces)
    answer = sidecar.post(CHAT, ask(False))
    assert (answer.status, answer.body) == (200, pieces)


def test_a_body_that_is_no_json_is_the_engines_to_refuse(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(400, b'{"error":"bad json"}')
    for body in (b'{"model":', b"[1,2]", b"\xff\xfe", b"null", b""):
        answer = sidecar.post(CHAT, body)
        assert (answer.status, answer.body) == (400, b'{"error":"bad json"}')
        assert engine.requests[-1].body == body


def test_a_redirect_passes(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = lambda peer, _: peer.send(respond(307, b"", [("location", "/elsewhere")], None))
    answer = sidecar.post(CHAT, ask(False))
    assert (answer.status, answer.headers["location"]) == (307, "/elsewhere")


def test_an_answer_without_a_length(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
        peer.send(b'{"a":')
        peer.send(b"1.0}")
        peer.close()

    engine.answer = answer
    assert sidecar.post(CHAT, ask(False)).body == b'{"a":1.0}'


def test_the_events_that_end_a_broken_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Never pretend an end: no [DONE] that the engine did not send."""

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(event(chat_chunk({"content": "half"}))))
        peer.close()

    engine.answer = answer
    answer_ = sidecar.post(CHAT, ask())
    events = [data for _, data in answer_.events()]
    assert events[0] == chat_chunk({"content": "half"})
    assert set(events[1]["error"]) >= {"message", "type", "code"}
    assert len(events) == 2
    assert sidecar.record(answer_)["outcome"] == "engine-error"


def test_headers_that_foreword_makes_are_its_own(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = lambda peer, _: peer.send(
        respond(200, {"object": "list"}, [("request-id", "theirs"), ("x-foreword", "theirs")])
    )
    with sidecar.open("POST", CHAT, ask(False)) as request:
        head = request.response.getheaders()
    named = [(name, value) for name, value in head if name.lower() in ("request-id", "x-foreword")]
    assert len(named) == 2
    assert "theirs" not in dict(named).values()


def test_a_body_that_breaks_in_its_chunks(sidecar: Sidecar) -> None:
    answer = sidecar.raw(
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    )
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert b"invalid_request_error" in answer

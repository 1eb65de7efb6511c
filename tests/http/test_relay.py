"""What passes through keeps every byte, but for the edits that docs and design list."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import StartSidecar
from .engine import (
    END,
    USAGE,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chat_chunk,
    chat_events,
    chunked,
    completion,
    event,
    models,
    respond,
    says,
    stream_head,
    streams,
)
from .sidecar import Sidecar

CHAT = "/v1/chat/completions"
# Order, spacing, number spelling, duplicate keys and escapes that no JSON library would keep.
ODD = (
    b'{ "model" : "m",\n\t"messages":[{"role":"user","content":"\\u00e9\\/\xc3\xa9 \\ud83d\\ude42"}],'
    b'"temperature":1.10,"seed":12345678901234567890123,"x":-0,"y":1e2,"x":[ ],"stop":null }\n'
)
ZSTD = {
    # zstd -c of: {"model":"m","messages":[]}
    b'{"model":"m","messages":[]}': "28b52ffd0058d900007b226d6f64656c223a226d222c226d65737361676573223a5b5d7d"
}


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
        answer = sidecar.request(method, f"/v1/files/{method}?x=1", b"raw\x00bytes" if method == "PUT" else None)
        assert answer.json() == {"deleted": True}
    assert [request.method for request in engine.requests] == ["GET", "DELETE", "PUT", "PATCH"]
    assert engine.requests[2].body == b"raw\x00bytes"


@pytest.mark.parametrize("target", ["/v1/responses/a%2Fb?x=%20&y=1+2&x=&z", "/slots/0?action=save", "/version"])
def test_paths_and_query_strings_are_kept(sidecar: Sidecar, engine: ScriptedEngine, target: str) -> None:
    engine.answer = answers(200, {"ok": True})
    sidecar.request("GET", target)
    assert engine.wait_for(1)[0].target == target


def test_the_query_of_a_translated_route_stays_here(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    sidecar.post("/v1/messages?beta=true", {"model": "m", "max_tokens": 5, "messages": [user("hi")]})
    assert engine.wait_for(1)[0].target == CHAT


STREAMS = {
    "lf": b"".join(chat_events("one two three", usage=None)),
    "crlf": b"".join(chat_events("one two", usage=None)).replace(b"\n", b"\r\n"),
    "comments": b": hello\n\n" + b"".join(chat_events("one", usage=None)).replace(b"\n\n", b"\n: between\n\n", 1),
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
    for body in (chat(stream=True), chat(stream=True, stream_options={"include_usage": True})):
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


def test_usage_that_the_client_asked_for_is_left(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = streams(*chat_events("one two", usage=USAGE))
    body = json.dumps(chat(stream=True, stream_options={"include_usage": True})).encode()
    answer = sidecar.post(CHAT, body)
    assert engine.requests[0].body == body
    assert answer.body == b"".join(chat_events("one two", usage=USAGE))


def test_usage_in_every_chunk_is_hidden_too(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    # `continuous_usage_stats` of an engine's default: the client did not ask for usage of any kind.
    events = [event(chat_chunk({"content": "a"}, usage=USAGE)), event(chat_chunk({}, "stop", usage=USAGE))]
    engine.answer = streams(*events, event("[DONE]"))
    answer = sidecar.post(CHAT, chat(stream=True))
    assert [data for _, data in answer.events()] == [
        chat_chunk({"content": "a"}),
        chat_chunk({}, "stop"),
        "[DONE]",
    ]


def test_refused_stream_options_are_remembered(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(EARLY_HEAD_SECONDS="59")  # its own process: what is learnt stays

    def answer(peer: Peer, request: Received) -> None:
        if "stream_options" in request.json():
            refusal = {"error": {"message": "Unknown field stream_options", "type": "BadRequestError", "code": 400}}
            peer.send(respond(400, refusal))
        else:
            says("hi", usage=None)(peer, request)

    engine.answer = answer
    for _ in range(2):
        answered = sidecar.post(CHAT, chat(stream=True))
        assert answered.body == b"".join(chat_events("hi", usage=None))
    asked = ["stream_options" in request.json() for request in engine.requests]
    assert asked == [True, False, False]


def test_a_clients_own_stream_options_are_its_own_fault(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    refusal = b'{"error":{"message":"stream_options is not supported"}}'
    engine.answer = answers(400, refusal)
    answer = sidecar.post(CHAT, chat(stream=True, stream_options={"include_usage": True}))
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


def test_the_only_model_stands_for_any_name(engine: ScriptedEngine, start_sidecar: StartSidecar) -> None:
    engine.probes = {"/v1/models": models("org/Only-1")}
    sidecar = start_sidecar(engine.url)
    wait_until_ready(sidecar)
    engine.answer = says("hi")
    answer = sidecar.post(CHAT, chat(model="claude-x"))
    assert engine.requests[-1].json()["model"] == "org/Only-1"
    assert answer.json()["model"] == "claude-x"
    sidecar.post(CHAT, chat(model="org/Only-1"))
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


def test_hop_by_hop_headers_are_of_one_side(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, {"ok": True}, ("keep-alive", "timeout=5"), ("connection", "keep-alive"))
    answer = sidecar.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: outer.example\r\nconnection: close, x-mine\r\nx-mine: 1\r\n"
        b"keep-alive: timeout=9\r\nte: trailers\r\nproxy-authorization: Basic abc\r\nupgrade: h3\r\n"
        b"x-kept: yes\r\naccept-encoding: gzip, br\r\ncontent-length: 2\r\n\r\n{}"
    )
    request = engine.wait_for(1)[0]
    names = {name.lower() for name, _ in request.headers}
    assert not names & {"te", "proxy-authorization", "upgrade", "keep-alive"}
    assert "close" not in (request.header("connection") or "")
    assert request.header("host") == f"127.0.0.1:{engine.port}"
    assert request.header("x-kept") == "yes"
    assert "x-mine" not in names, "what `connection` names belongs to that connection (RFC 9110, 7.6.1)"
    assert request.header("accept-encoding") == "identity"
    assert b"keep-alive" not in answer.lower().replace(b"connection: keep-alive", b"")


def test_a_clients_headers_go_upstream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    sidecar.post(CHAT, chat(), {"X-Request-Id": "trace-1", "traceparent": "00-ab-cd-01", "X-Odd": "a; b, c"})
    request = engine.requests[0]
    assert request.header("x-request-id") == "trace-1"
    assert request.header("traceparent") == "00-ab-cd-01"
    assert request.header("x-odd") == "a; b, c"


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/embeddings"])
def test_an_engines_error_passes(sidecar: Sidecar, engine: ScriptedEngine, path: str, status: int) -> None:
    body = b'{ "error":{"message":"maximum context length is 5 tokens, 9 input tokens","code":400.0}}\n'
    engine.answer = answers(status, body, ("retry-after", "7"), ("x-reason", "own"))
    answer = sidecar.post(path, chat(stream=True))
    assert (answer.status, answer.body) == (status, body)
    assert (answer.headers["retry-after"], answer.headers["x-reason"]) == ("7", "own")
    assert sidecar.record(answer)["outcome"] == "refused"


@pytest.mark.parametrize("path", [CHAT, "/v1/files/1/content"])
def test_a_compressed_answer_passes_as_it_is(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    body = gzip.compress(b'{"choices":[]}')
    for status in (200, 400):
        engine.answer = answers(status, body, ("content-encoding", "gzip"))
        answer = sidecar.post(path, chat())
        assert (answer.status, answer.body, answer.headers["content-encoding"]) == (status, body, "gzip")


def raw_deflate(data: bytes) -> bytes:
    squeezer = zlib.compressobj(wbits=-15)
    return squeezer.compress(data) + squeezer.flush()


PLAIN = b'{"model":"m","messages":[]}'
ENCODED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", lambda data: bytes.fromhex(ZSTD[data])),
    "case": ("GZIP", gzip.compress),
}


@pytest.mark.parametrize("name", ENCODED)
def test_request_bodies_are_decoded(sidecar: Sidecar, engine: ScriptedEngine, name: str) -> None:
    coding, encode = ENCODED[name]
    engine.answer = says("hi")
    answer = sidecar.post(CHAT, encode(PLAIN), {"content-encoding": coding})
    assert answer.status == 200
    assert engine.requests[0].body == PLAIN
    assert engine.requests[0].header("content-encoding") is None


def test_a_path_that_is_not_read_keeps_its_encoding(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(200, {"ok": True})
    sidecar.post("/v1/files", b"\x1f\x8b-anything", {"content-encoding": "br"})
    assert engine.requests[0].body == b"\x1f\x8b-anything"
    assert engine.requests[0].header("content-encoding") == "br"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_bomb_is_bounded(
    sidecar_with: StartSidecar, engine: ScriptedEngine, coding: str, path: str
) -> None:
    sidecar = sidecar_with(MAX_BODY_MIB="1")
    bomb = ENCODED[coding][1](bytes(300 << 20))
    assert len(bomb) < 1 << 20
    before = sidecar.rss_bytes()
    answer = sidecar.post(path, bomb, {"content-encoding": coding})
    assert answer.status == 413
    assert error_type(answer.json()) == ("request_too_large" if path == "/v1/messages" else "invalid_request_error")
    assert not engine.requests
    assert sidecar.rss_bytes() - before < 32 << 20


def test_a_body_that_does_not_decode(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    answer = sidecar.post(CHAT, b"no gzip", {"content-encoding": "gzip"})
    assert (answer.status, error_type(answer.json())) == (400, "invalid_request_error")
    assert not engine.requests


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_an_unknown_encoding(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    answer = sidecar.post(path, b"x", {"content-encoding": "br"})
    assert (answer.status, error_type(answer.json())) == (415, "invalid_request_error")
    assert not engine.requests


@pytest.mark.parametrize("path", ["/", "/api/hello"])
def test_what_claude_code_asks_at_its_start(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    answer = sidecar.request("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")
    assert not engine.requests


@pytest.mark.parametrize(
    ("path", "message_dialect"),
    [("/nope", False), ("/chat/completions", False), ("/messages", True), ("/anthropic/v1/messages", True)],
)
def test_an_unknown_path(
    sidecar: Sidecar, engine: ScriptedEngine, path: str, message_dialect: bool
) -> None:
    answer = sidecar.post(path, chat())
    assert answer.status == 404
    assert answer.json().get("type") == ("error" if message_dialect else None)
    assert path in answer.json()["error"]["message"]
    assert answer.headers["request-id"]
    assert not engine.requests


@pytest.mark.parametrize("doubled", ["/v1/v1", "//v1", "/v1//v1"])
@pytest.mark.parametrize("path", ["/messages", "/chat/completions"])
def test_a_doubled_base_url_is_told(
    sidecar: Sidecar, engine: ScriptedEngine, doubled: str, path: str
) -> None:
    answer = sidecar.post(doubled + path, chat())
    assert answer.status == 404
    assert f"/v1{path}" in answer.json()["error"]["message"].replace(doubled + path, "")
    assert answer.json().get("type") == ("error" if path == "/messages" else None)
    assert not engine.requests


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/messages", "POST"),
        ("PUT", "/v1/messages/count_tokens", "POST"),
        ("GET", CHAT, "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
    ],
)
def test_a_wrong_method(
    sidecar: Sidecar, engine: ScriptedEngine, method: str, path: str, allowed: str
) -> None:
    answer = sidecar.request(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert answer.json().get("type") == ("error" if "messages" in path else None)
    assert error_type(answer.json()) == "invalid_request_error"
    assert not engine.requests


def test_the_model_list_in_both_shapes(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    listing = models("a", "b")
    engine.answer = lambda peer, _: peer.send(listing)
    openai = sidecar.request("GET", "/v1/models")
    assert openai.body == listing.partition(b"\r\n\r\n")[2]
    anthropic = sidecar.request("GET", "/v1/models?limit=1000", headers={"anthropic-version": "2023-06-01"})
    assert anthropic.json() == {
        "data": [
            {"type": "model", "id": name, "display_name": name, "created_at": "2023-11-14T22:13:20Z"}
            for name in ("a", "b")
        ],
        "has_more": False,
        "first_id": "a",
        "last_id": "b",
    }


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"Authorization": "Bearer key-one"}, 200),
        ({"Authorization": "bearer key-two"}, 200),
        ({"x-api-key": "key-one"}, 200),
        ({"X-Api-Key": "key-two", "Authorization": "Bearer wrong"}, 200),
        ({"x-api-key": "wrong", "Authorization": "Bearer key-one"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"Authorization": "key-one-and-more"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({}, 401),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models", "/v1/embeddings"])
def test_either_key_in_either_header(
    sidecar_with: StartSidecar, engine: ScriptedEngine, given: dict[str, str], status: int, path: str
) -> None:
    sidecar = sidecar_with(API_KEYS="key-one,key-two")
    engine.answer = answers(200, completion({"content": "hi"}))
    if path == "/v1/models":
        engine.answer = lambda peer, _: peer.send(models("m"))
        answer = sidecar.request("GET", path, headers=given)
    else:
        answer = sidecar.post(path, chat(), given)
    assert answer.status == status
    if status == 401:
        assert not engine.requests
        assert error_type(answer.json()) == "authentication_error"
        assert answer.json().get("type") == ("error" if path == "/v1/messages" else None)
        return
    upstream = " ".join(f"{name}: {value}" for name, value in engine.requests[0].headers)
    assert "key-" not in upstream, "a key of the sidecar's own went upstream"


def test_keys_are_not_asked_for_where_none_is_set(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    sidecar.post(CHAT, chat(), {"x-api-key": "for-the-engine"})
    sidecar.post(CHAT, chat(), {"Authorization": "Bearer theirs"})
    sidecar.post(CHAT, chat())
    # Engines take Bearer only.
    assert [request.header("authorization") for request in engine.requests] == [
        "Bearer for-the-engine",
        "Bearer theirs",
        None,
    ]
    assert all(request.header("x-api-key") is None for request in engine.requests)


def test_another_key_beside_ours_goes_upstream(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(API_KEYS="key-one,key-two")
    engine.answer = says("hi")
    sidecar.post(CHAT, chat(), {"x-api-key": "key-one", "Authorization": "Bearer engine-key"})
    assert engine.requests[0].header("authorization") == "Bearer engine-key"


def test_the_upstream_key_replaces_the_clients(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(UPSTREAM_API_KEY="secret")
    engine.answer = says("hi")
    for given in ({"x-api-key": "theirs"}, {"Authorization": "Bearer theirs"}, {}):
        sidecar.post(CHAT, chat(), given)
    assert {request.header("authorization") for request in engine.requests} == {"Bearer secret"}
    assert all(request.header("x-api-key") is None for request in engine.requests)
    probes = [request for request in engine.all if request not in engine.requests]
    assert all(probe.header("authorization") == "Bearer secret" for probe in probes)


def test_an_old_client(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = streams(*chat_events("one two", usage=None))
    body = json.dumps(chat(stream=True)).encode()
    answer = sidecar.raw(
        b"POST /v1/chat/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200")
    assert b"transfer-encoding" not in head.lower(), "HTTP/1.0 knows no chunks"
    assert rest == b"".join(chat_events("one two", usage=None))


def test_a_client_that_asks_before_it_sends(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    body = json.dumps(chat()).encode()
    with sidecar.connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    request = engine.wait_for(1)[0]
    assert request.body == body
    assert request.header("expect") is None


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
def test_a_chunked_request(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    engine.answer = answers(200, completion({"content": "hi"}))
    body = json.dumps(chat(content="x" * 5000)).encode()
    answer = sidecar.raw(
        b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode()
        + b"".join(chunked(body[at : at + 777]) for at in range(0, len(body), 777))
        + END
    )
    assert answer.startswith(b"HTTP/1.1 200 ")
    request = engine.wait_for(1)[0]
    assert request.body == body
    assert request.header("content-length") == str(len(body))


def test_a_stream_that_nobody_asked_for_passes(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    pieces = b"".join(chat_events("one two", usage=None))
    engine.answer = streams(pieces)
    answer = sidecar.post(CHAT, chat())
    assert (answer.status, answer.body) == (200, pieces)


def test_a_body_that_is_no_json_is_the_engines_to_refuse(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = answers(400, b'{"error":"bad json"}')
    for body in (b'{"model":', b"[1,2]", b"\xff\xfe", b"null", b""):
        answer = sidecar.post(CHAT, body)
        assert (answer.status, answer.body) == (400, b'{"error":"bad json"}')
        assert engine.requests[-1].body == body


def test_a_redirect_passes(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = lambda peer, _: peer.send(respond(307, b"", [("location", "/elsewhere")], None))
    answer = sidecar.post(CHAT, chat())
    assert (answer.status, answer.headers["location"]) == (307, "/elsewhere")


def test_an_answer_without_a_length(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")
        peer.send(b'{"a":')
        peer.send(b"1.0}")
        peer.close()

    engine.answer = answer
    assert sidecar.post(CHAT, chat()).body == b'{"a":1.0}'


def test_the_events_that_end_a_broken_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Never pretend an end: no [DONE] that the engine did not send."""

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(event(chat_chunk({"content": "half"}))))
        peer.close()

    engine.answer = answer
    answer_ = sidecar.post(CHAT, chat(stream=True))
    events = [data for _, data in answer_.events()]
    assert events[0] == chat_chunk({"content": "half"})
    assert set(events[1]["error"]) >= {"message", "type", "code"}
    assert len(events) == 2
    assert sidecar.record(answer_)["outcome"] == "engine-error"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat(model: str = "m", content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [user(content)], "max_tokens": 5, **more}


def error_type(body: dict[str, Any]) -> str:
    kind: str = body["error"]["type"]
    return kind


def wait_until_ready(sidecar: Sidecar) -> None:
    for _ in range(500):
        if sidecar.request("GET", "/health/ready").status == 200:
            return
    raise AssertionError("the engine was not found")

"""Published faults that take more than a golden file: sockets, heads, encodings, time. The ids are those of
tests/fixtures/cases.json."""

import contextlib
import gzip
import json
import re
import socket
import time
import zlib

import pytest

from .anthropic_stream import names, text_of
from .conftest import StartSidecar
from .engine import (
    END,
    REST,
    ROLE,
    Gate,
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
    prefills,
    respond,
    says,
    stream_head,
    streams,
)
from .sidecar import CHAT, MESSAGES, Sidecar, ask, read_to_end


@pytest.mark.case("B012")
@pytest.mark.parametrize("at", [1, 9, 60, -1], ids=["first byte", "prefix", "in the text", "last byte"])
def test_a_ping_does_not_cut_an_event(sidecar_with: StartSidecar, engine: ScriptedEngine, at: int) -> None:
    gate = Gate()
    half = event(chat_chunk({"content": "hello"}))

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(ROLE + half[:at]))
        gate.wait()
        peer.send(chunked(half[at:] + REST) + END)

    engine.answer = answer
    with sidecar_with(PING_SECONDS="0.3").open("POST", MESSAGES, ask()) as request:
        seen = request.read_until(b"event: ping")
        gate.open()
        answered = request.whole()
    answered.body = seen + answered.body
    assert text_of(answered) == "hello"
    assert names(answered)[-1] == "message_stop"


@pytest.mark.case("B246", "B250")
def test_no_hop_is_asked_to_buffer(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    for path in (MESSAGES, CHAT):
        headers = sidecar.post(path, ask()).headers
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["x-accel-buffering"] == "no"
        assert not {"content-length", "content-encoding"} & set(headers)
        if path == MESSAGES:
            assert headers["cache-control"] == "no-cache"


@pytest.mark.case("B250")
@pytest.mark.parametrize("value", ["no", "yes"])
def test_what_the_engine_says_of_buffering_reaches_the_client(
    sidecar: Sidecar, engine: ScriptedEngine, value: str
) -> None:
    events = b"".join(chat_events("hi", usage=None))
    engine.answer = lambda peer, _: peer.send(
        stream_head([("x-accel-buffering", value)]) + chunked(events) + END
    )
    with sidecar.open("POST", CHAT, ask()) as request:
        said = [entry for name, entry in request.response.getheaders() if name == "x-accel-buffering"]
    assert said == [value]


@pytest.mark.case("B251")
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_the_head_does_not_wait_for_a_second_event(
    sidecar: Sidecar, engine: ScriptedEngine, path: str
) -> None:
    gate = Gate()

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(ROLE))
        gate.wait()
        peer.send(chunked(REST) + END)

    engine.answer = answer
    began = time.monotonic()
    with sidecar.open("POST", path, ask()) as request:
        assert request.response.status == 200
        request.read_until(b"message_start" if path == MESSAGES else b'"assistant"')
        assert time.monotonic() - began < 2
        gate.open()
        request.whole()


@pytest.mark.case("B217")
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_a_compressed_stream_passes_as_it_is(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    body = gzip.compress(b"".join(chat_events("one two", usage=None)))
    head = stream_head([("content-encoding", "gzip")])
    engine.answer = lambda peer, _: peer.send(head + chunked(body[:20]) + chunked(body[20:]) + END)
    answer = sidecar.post(path, ask(stream_options={"include_usage": True}), {"accept-encoding": "gzip"})
    assert (answer.status, answer.body, answer.headers["content-encoding"]) == (200, body, "gzip")
    assert engine.requests[0].header("accept-encoding") == "identity", "nobody asked for it"
    assert sidecar.record(answer)["usage"]["prompt_tokens"] is None


@pytest.mark.case("B215")
@pytest.mark.parametrize("stream", [True, False])
def test_a_translated_answer_is_never_compressed(
    sidecar: Sidecar, engine: ScriptedEngine, stream: bool
) -> None:
    engine.answer = says("hi")
    answer = sidecar.post(MESSAGES, ask(stream), {"accept-encoding": "gzip, br, zstd"})
    assert "content-encoding" not in answer.headers
    assert (text_of(answer).strip() if stream else answer.json()["content"][0]["text"]) == "hi"


ZSTD = bytes.fromhex("28b52ffd00586900007b226d6f64656c223a226d227d")
"""zstd of: {"model":"m"}"""


@pytest.mark.case("B218")
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
def test_every_read_route_takes_zstd(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    engine.answer = answers(200, {"object": "x", "choices": []})
    answer = sidecar.post(path, ZSTD, {"content-encoding": "zstd"})
    assert answer.status == 200
    request = engine.requests[0]
    assert (request.body, request.header("content-encoding")) == (b'{"model":"m"}', None)
    assert request.header("content-length") == "13"


@pytest.mark.case("B218")
@pytest.mark.parametrize("coding", ["gzip", "deflate", "gzip, deflate"])
@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
def test_messages_are_decoded_too(sidecar: Sidecar, engine: ScriptedEngine, path: str, coding: str) -> None:
    engine.answer = lambda peer, request: peer.send(
        respond(200, {"count": 3} if request.target == "/tokenize" else completion({"content": "hi"}))
    )
    body = json.dumps(ask(False)).encode()
    for name in coding.split(", "):
        body = gzip.compress(body) if name == "gzip" else zlib.compress(body)
    answer = sidecar.post(path, body, {"content-encoding": coding})
    assert answer.status == 200
    assert engine.requests[0].json()["messages"] == ask()["messages"]
    assert engine.requests[0].header("content-encoding") is None


@pytest.mark.case("B221", "B223")
@pytest.mark.parametrize("name", [b"CONTENT-LENGTH", b"Content-Length", b"cOnTeNt-LeNgTh"])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_the_length_is_that_of_the_new_body(
    sidecar: Sidecar, engine: ScriptedEngine, path: str, name: bytes
) -> None:
    engine.answer = says("hi")
    body = b'{ "model": "m",   "max_tokens": 5, "stream": true, "messages": [ {"role":"user","content":"hi"} ] }\r\n'
    answer = sidecar.raw(
        b"POST %b HTTP/1.1\r\nHOST: x\r\nCONNECTION: close\r\nCONTENT-TYPE: application/json\r\n%b: %d\r\n\r\n%b"
        % (path.encode(), name, len(body), body)
    )
    assert answer.startswith(b"HTTP/1.1 200 ")
    request = engine.wait_for(1)[0]  # the engine takes no request with two framing headers
    assert len(request.body) != len(body)
    assert request.header("content-length") == str(len(request.body))
    assert request.json()["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.case("B222")
def test_two_framings_are_refused(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """What one hop reads as a length and another as chunks lets a second request in (RFC 9112, 6.1)."""
    engine.answer = says("hi")
    body = json.dumps(ask(False)).encode()
    answer = sidecar.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(body) + END
    )
    if answer.startswith(b"HTTP/1.1 200 "):
        assert engine.requests[0].body == body, "chunks win, and one framing goes on"
        assert engine.requests[0].header("transfer-encoding") is None
    else:
        assert b" 400 " in answer.split(b"\r\n")[0]
        assert not engine.requests


@pytest.mark.case("B211")
@pytest.mark.parametrize("path", [b"/", b"/api/hello"])
def test_a_connection_is_good_for_more_after_a_probe(
    sidecar: Sidecar, engine: ScriptedEngine, path: bytes
) -> None:
    engine.answer = says("hi")
    body = json.dumps(ask(False)).encode()
    with sidecar.connect() as connection:
        connection.sendall(b"HEAD %b HTTP/1.1\r\nhost: x\r\nuser-agent: Bun/1.3\r\n\r\n" % path)
        head = connection.recv(65536)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert head.endswith(b"\r\n\r\n"), "HEAD has no body"
        connection.sendall(
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.case("B212")
def test_a_greeting_is_answered_here(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    assert sidecar.request("GET", "/api/hello").status == 200
    assert not engine.requests


@pytest.mark.case("B248")
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_body_that_is_refused_is_logged_and_counted(
    sidecar_with: StartSidecar, engine: ScriptedEngine, path: str
) -> None:
    sidecar = sidecar_with(MAX_BODY_MIB="1")
    with sidecar.connect() as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {2 << 20}\r\n\r\n"
        connection.sendall(head.encode())
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert (b"request_too_large" if path == MESSAGES else b"invalid_request_error") in answer
    request_id = re.search(rb"req_[0-9a-zA-Z]+", answer)
    assert request_id is not None

    def logged() -> bool:
        lines = sidecar.log.read_text().splitlines()
        return any(request_id[0].decode() in line and "too_large" in line for line in lines)

    deadline = time.monotonic() + 5  # lines are written by a thread of their own
    while not logged() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert logged()
    route = "messages" if path == MESSAGES else "chat"
    metrics = sidecar.request("GET", "/metrics").body.decode()
    assert f'foreword_exchanges_total{{route="{route}",status="413"}} 1.0' in metrics
    assert not engine.requests


@pytest.mark.case("B249")
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_a_refusal_outlives_the_body(
    sidecar_with: StartSidecar, engine: ScriptedEngine, framing: str
) -> None:
    """A client that writes 40 MB before it reads gets to read the 401 that was said at once."""
    sidecar = sidecar_with(API_KEYS="key")
    body = b" " * (40 << 20)
    with sidecar.connect() as connection:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: wrong\r\n"
        if framing == "chunked":
            head, body = head + b"transfer-encoding: chunked", chunked(body) + END
        else:
            head += b"content-length: %d" % len(body)
        connection.sendall(head + b"\r\n\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(body)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"authentication_error" in answer
    assert not engine.requests


@pytest.mark.case("B241")
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_reused_connection_that_closes_under_a_large_body(start_sidecar: StartSidecar, path: str) -> None:
    met: list[bytes] = []

    def hasty(peer: Peer, request: Received) -> None:
        """Answers, and resets the connection at the first bytes of whatever comes next on it."""
        says("hi")(peer, request)
        if begin := peer.socket.recv(4, socket.MSG_PEEK):
            met.append(begin)
            peer.reset()

    with ScriptedEngine() as engine:
        engine.answer = hasty
        sidecar = start_sidecar(engine.url, MODEL_MAP="off", ENGINE_METRICS_SECONDS="0")
        sidecar.wait_until_ready()
        assert sidecar.post(path, ask(False)).status == 200
        # A question of Foreword's own, from the same pool, may take a connection before the client's request does.
        for _ in range(5):
            answer = sidecar.post(path, ask(False, content="x" * (8 << 20)))
            assert answer.status == 200
            assert sidecar.record(answer)["retried"] is (b"POST" in met)
            if b"POST" in met:
                return
        raise AssertionError(f"no connection was used again by a client: {met}")


MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


@pytest.mark.case("B255")
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_no_chunks_for_an_old_client(
    sidecar: Sidecar, engine: ScriptedEngine, path: str, stream: bool
) -> None:
    engine.answer = says("one two", usage=None)
    body = json.dumps(ask(stream)).encode()
    answer = sidecar.raw(
        b"POST %b HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (path.encode(), len(body), body)
    )
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0]
    assert b"transfer-encoding" not in head.lower()
    if stream:
        end = event("[DONE]") if path == CHAT else MESSAGE_STOP
        assert rest.endswith(end)
    else:
        assert b"content-length: %d" % len(rest) in head.lower()
        assert b"one two" in rest


@pytest.mark.case("B255")
def test_an_old_client_reads_each_event_at_once(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    gate = Gate()

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(ROLE + event(chat_chunk({"content": "first"}))))
        gate.wait()
        peer.send(chunked(REST) + END)

    engine.answer = answer
    body = json.dumps(ask()).encode()
    with sidecar.connect(5) as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        seen = b""
        while b"first" not in seen:
            piece = connection.recv(65536)
            assert piece, seen
            seen += piece
        gate.open()
        assert b"message_stop" in read_to_end(connection)


@pytest.mark.case("B256")
@pytest.mark.parametrize("stream", [True, False])
def test_hop_by_hop_headers_of_an_engine_stay_there(
    sidecar: Sidecar, engine: ScriptedEngine, stream: bool
) -> None:
    own = [
        ("connection", "keep-alive, x-hop"),
        ("keep-alive", "timeout=5"),
        ("x-hop", "1"),
        ("x-kept", "yes"),
    ]

    def answer(peer: Peer, _: Received) -> None:
        events = b"".join(chat_events("hi", usage=None))
        if stream:
            peer.send(stream_head(own) + chunked(events) + END)
        else:
            peer.send(respond(200, completion({"content": "hi"}), own))

    engine.answer = answer
    headers = sidecar.post(CHAT, ask(stream)).headers
    assert headers["x-kept"] == "yes"
    assert not {"keep-alive", "x-hop"} & set(headers)
    assert "x-hop" not in headers.get("connection", "")


@pytest.mark.case("B238")
def test_a_whole_answer_that_nobody_waits_for_is_dropped_before_its_head(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    engine.answer = prefills
    with sidecar.open("POST", f"{MESSAGES}/count_tokens", ask(False)) as request:
        peer = engine.peers[engine.wait_for(1)[0].connection]
        left = request.leave()
        assert peer.wait_until_closed() - left < 1


@pytest.mark.case("B214")
@pytest.mark.parametrize("path", [MESSAGES, CHAT, "/v1/responses", "/v1/embeddings", "/nope"])
def test_every_answer_has_a_request_id(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    engine.answer = answers(500, {"error": {"message": "no"}})
    answer = sidecar.post(path, ask(False), {"x-client-request-id": "abc"})
    assert answer.status in (404, 500)
    assert answer.headers["request-id"].startswith("req_")
    if path == MESSAGES:
        assert answer.json()["request_id"] == answer.headers["request-id"]
    if engine.requests:
        assert engine.requests[0].header("x-client-request-id") == "abc", "the engine's log may name it"


@pytest.mark.case("B207", "B208")
def test_the_engine_gets_one_authorization(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = says("hi")
    sidecar.post(MESSAGES, ask(), {"Authorization": "Bearer GOOD", "x-api-key": "STALE"})
    sidecar.post(MESSAGES, ask(), {"x-api-key": "K"})
    given = [
        [
            (name.lower(), value)
            for name, value in request.headers
            if name.lower() in ("authorization", "x-api-key")
        ]
        for request in engine.requests
    ]
    assert given == [[("authorization", "Bearer GOOD")], [("authorization", "Bearer K")]]


@pytest.mark.case("B205")
def test_aliases_are_listed_and_served(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(MODEL_MAP="claude-local=m,claude-*=m")
    engine.answer = lambda peer, _: peer.send(models("m"))
    anthropic = sidecar.request("GET", "/v1/models?limit=1000", headers={"anthropic-version": "2023-06-01"})
    assert [entry["id"] for entry in anthropic.json()["data"]] == ["m", "claude-local"]
    assert sidecar.request("GET", "/v1/models").body == models("m").partition(b"\r\n\r\n")[2]
    engine.answer = says("hi")
    answer = sidecar.post(MESSAGES, ask(False, model="claude-local"))
    assert (answer.json()["model"], engine.requests[-1].json()["model"]) == ("claude-local", "m")


@pytest.mark.case("B163")
@pytest.mark.parametrize("stream", [True, False])
def test_only_three_kinds_of_block_are_made(sidecar: Sidecar, engine: ScriptedEngine, stream: bool) -> None:
    """What an engine adds of its own (citations, audio, searches) has no block in a translated answer."""
    said = {
        "content": "Found.",
        "annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.com"}}],
        "audio": None,
        "server_tool_use": {"web_search_requests": 1},
        "web_search_results": [{"title": "x"}],
    }
    if stream:
        engine.answer = streams(ROLE, event(chat_chunk(said)), REST)
    else:
        engine.answer = answers(200, completion(said))
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    answer = sidecar.post(MESSAGES, ask(stream, tools=tools))
    if stream:
        starts = [data for name, data in answer.events() if name == "content_block_start"]
        assert [start["content_block"]["type"] for start in starts] == ["text"]
        assert text_of(answer) == "Found."
    else:
        assert answer.json()["content"] == [{"type": "text", "text": "Found."}]

"""Slow engines and slow clients: heads, pings and limits."""

import contextlib
import time

import pytest

from .conftest import StartSidecar
from .engine import (
    END,
    HALF,
    REST,
    ROLE,
    Answer,
    Gate,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chat_chunk,
    chat_events,
    chunked,
    decodes,
    event,
    prefills,
    respond,
    says,
    stream_head,
)
from .sidecar import CHAT, MESSAGES, Sidecar, ask

SLOW = {"PING_SECONDS": "0.3", "EARLY_HEAD_SECONDS": "1"}


def late(gate: Gate, then: Answer) -> Answer:
    def answer(peer: Peer, request: Received) -> None:
        gate.wait()
        then(peer, request)

    return answer


def test_an_early_head_with_pings_then_success(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.answer = late(gate, says("hi"))
    began = time.monotonic()
    with sidecar_with(**SLOW).open("POST", MESSAGES, ask()) as request:
        assert request.response.status == 200
        assert 0.9 < time.monotonic() - began < 5
        assert request.headers["content-type"] == "text/event-stream"
        seen = request.read_until(b"event: ping")
        assert seen.startswith(b"event: message_start")
        request.read_until(b"event: ping")
        gate.open()
        rest = request.whole()
    kinds = [name for name, _ in rest.events() if name != "ping"]
    assert kinds == [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (answers(429, {"error": {"message": "later"}}), "rate_limit_error"),
        (answers(400, {"error": {"message": "no"}}), "invalid_request_error"),
        (lambda peer, _: peer.close(), "api_error"),
    ],
)
def test_an_early_head_then_an_error(
    sidecar_with: StartSidecar, engine: ScriptedEngine, then: Answer, kind: str
) -> None:
    gate = Gate()
    engine.answer = late(gate, then)
    with sidecar_with(**SLOW).open("POST", MESSAGES, ask()) as request:
        request.read_until(b"event: ping")
        gate.open()
        events = [entry for entry in request.whole().events() if entry[0] != "ping"]
    assert [name for name, _ in events] == ["error"]
    assert events[0][1]["error"]["type"] == kind


@pytest.mark.parametrize("then", [answers(429, {"error": {"message": "later"}}), says("hi", usage=None)])
def test_an_early_head_of_a_chat(sidecar_with: StartSidecar, engine: ScriptedEngine, then: Answer) -> None:
    gate = Gate()
    engine.answer = late(gate, then)
    with sidecar_with(**SLOW).open("POST", CHAT, ask()) as request:
        assert request.response.status == 200
        gate.open()
        answer = request.whole()
    events = [data for _, data in answer.events()]
    if "error" in events[0]:
        assert len(events) == 1
        assert events[0]["error"]["message"]
    else:
        assert answer.body == b"".join(chat_events("hi", None))


@pytest.mark.case("B116")
def test_a_real_status_until_the_early_head(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        time.sleep(0.7)
        peer.send(respond(429, {"error": {"message": "later"}}))

    engine.answer = answer
    assert sidecar_with(**SLOW).post(MESSAGES, ask()).status == 429


def test_no_early_head_where_it_is_off(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        time.sleep(1.5)
        peer.send(respond(429, {"error": {"message": "later"}}))

    engine.answer = answer
    assert sidecar_with(PING_SECONDS="0.3", EARLY_HEAD_SECONDS="0").post(MESSAGES, ask()).status == 429


@pytest.mark.case("B253")
def test_pings_after_the_engines_own_head(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    gate = Gate()

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        gate.wait()
        peer.send(chunked(HALF + REST) + END)

    engine.answer = answer
    began = time.monotonic()
    with sidecar_with(PING_SECONDS="0.3", EARLY_HEAD_SECONDS="0").open("POST", MESSAGES, ask()) as request:
        seen = request.read_until(b"event: ping")
        took = time.monotonic() - began
        gate.open()
        rest = request.whole()
    assert seen.startswith(b"event: message_start")
    assert 0.25 < took < 3
    assert [name for name, _ in rest.events()][-1] == "message_stop"
    assert b"message_start" not in rest.body


@pytest.mark.case("B244")
@pytest.mark.parametrize(
    "before",
    [
        HALF,
        ROLE + event(chat_chunk({"reasoning": "half "})),
        HALF + event(chat_chunk({"tool_calls": [{"id": "a", "index": 0, "function": {"name": "f"}}]})),
        HALF + event(chat_chunk({}, "stop")),
    ],
    ids=["text", "thinking", "tool", "after the finish"],
)
def test_pings_in_silence(sidecar_with: StartSidecar, engine: ScriptedEngine, before: bytes) -> None:
    gate = Gate()

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(before))
        gate.wait()
        peer.send(chunked(REST) + END)

    engine.answer = answer
    began = time.monotonic()
    with sidecar_with(PING_SECONDS="0.3").open("POST", MESSAGES, ask()) as request:
        seen = request.read_until(b"event: ping")
        seen += request.read_until(b"event: ping")
        took = time.monotonic() - began
        gate.open()
        rest = request.whole()
    print(f"two pings after {took:.2f} s")
    assert 0.5 < took < 4
    assert (seen + rest.body).decode().count("event: ping") <= 2 + took / 0.3
    assert [name for name, _ in rest.events()][-1] == "message_stop"


def test_no_ping_where_events_flow(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        for data in [ROLE, *[event(chat_chunk({"content": "x"}))] * 8, REST]:
            peer.send(chunked(data))
            time.sleep(0.1)
        peer.send(END)

    engine.answer = answer
    assert b"event: ping" not in sidecar_with(PING_SECONDS="0.6").post(MESSAGES, ask()).body


def test_a_chat_is_never_pinged(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(HALF))
        time.sleep(1)
        peer.send(chunked(REST) + END)

    engine.answer = answer
    assert sidecar_with(PING_SECONDS="0.3").post(CHAT, ask()).body == HALF + REST


LIMITS = {"IDLE_SECONDS": "1", "ANSWER_SECONDS": "1", "PING_SECONDS": "0.4"}


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_silence_beyond_the_limit_is_an_error_event(
    sidecar_with: StartSidecar, engine: ScriptedEngine, path: str
) -> None:
    engine.answer = decodes
    sidecar = sidecar_with(**LIMITS)
    began = time.monotonic()
    answer = sidecar.post(path, ask())
    assert 0.9 < time.monotonic() - began < 5
    events = answer.events()
    assert "error" in events[-1][1]
    assert sum("error" in data for _, data in events) == 1
    assert "IDLE_SECONDS" in events[-1][1]["error"]["message"]
    if path == MESSAGES:
        assert (events[-1][0], events[-1][1]["error"]["type"]) == ("error", "timeout_error")
    engine.peers[engine.wait_for(1)[0].connection].wait_until_closed()


@pytest.mark.parametrize("path", [MESSAGES, CHAT, "/v1/embeddings"])
def test_an_answer_beyond_the_limit_is_a_504(
    sidecar_with: StartSidecar, engine: ScriptedEngine, path: str
) -> None:
    engine.answer = prefills
    answer = sidecar_with(**LIMITS).post(path, ask(stream=False))
    assert answer.status == 504
    assert "ANSWER_SECONDS" in answer.json()["error"]["message"]
    assert answer.json().get("type") == ("error" if path == MESSAGES else None)
    engine.peers[engine.wait_for(1)[0].connection].wait_until_closed()


def test_an_answer_that_trickles_is_bounded_as_a_whole(
    sidecar_with: StartSidecar, engine: ScriptedEngine
) -> None:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
        for _step in range(100):
            peer.send(b" ")
            time.sleep(0.1)

    engine.answer = answer
    began = time.monotonic()
    assert sidecar_with(**LIMITS).post(MESSAGES, ask(stream=False)).status == 504
    assert time.monotonic() - began < 5


def test_a_slow_body(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(BODY_SECONDS="0.5", MAX_BODY_MIB="1")
    with sidecar.connect() as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(4):  # slow, but on its way: each step is within the limit
            time.sleep(0.25)
            connection.sendall(b" ")
        began = time.monotonic()
        answer = connection.recv(65536)
        assert 0.3 < time.monotonic() - began < 5
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"type":"error"' in answer
    assert not engine.requests


@pytest.mark.case("B115", "B249")
@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_a_body_that_is_too_large(sidecar_with: StartSidecar, engine: ScriptedEngine, framing: str) -> None:
    """A client that writes on before it reads must still get to read the answer."""
    sidecar = sidecar_with(BODY_SECONDS="0.5", MAX_BODY_MIB="1")
    body = b" " * (8 << 20)
    with sidecar.connect() as connection:
        if framing == "chunked":
            head, rest = b"transfer-encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            head, rest = b"content-length: %d" % len(body), body
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(rest)  # the answer may be here all the same
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in answer
    assert not engine.requests


def test_a_body_at_the_limit_passes(sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = sidecar_with(BODY_SECONDS="0.5", MAX_BODY_MIB="1")
    engine.answer = answers(200, {"ok": True})
    body = b'{"x":"%b"}' % (b"a" * ((1 << 20) - 8))
    assert len(body) == 1 << 20
    assert sidecar.post(CHAT, body).status == 200
    assert engine.requests[0].body == body
    assert sidecar.post(CHAT, body + b" ").status == 413


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
def test_an_early_head_then_no_stream(path: str, sidecar_with: StartSidecar, engine: ScriptedEngine) -> None:
    """The head cannot be taken back: what is no stream ends this one with an error, and nobody waits for ever."""
    gate = Gate()
    engine.answer = late(gate, answers(200, {"object": "response", "choices": []}))
    with sidecar_with(**SLOW).open("POST", path, ask()) as request:
        assert request.response.status == 200
        gate.open()
        rest = request.whole()
    assert b"error" in rest.body
    assert b"[DONE]" not in rest.body


def test_event_streams_of_any_route_stream(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    gate = Gate()

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(b"data: one\n\n"))
        gate.wait()
        peer.send(chunked(b"data: two\n\n") + END)

    engine.answer = answer
    with sidecar.open("POST", "/v1/audio/speech", {"input": "hi"}) as request:
        assert request.read_until(b"one\n\n") == b"data: one\n\n"
        gate.open()
        assert request.whole().body == b"data: two\n\n"

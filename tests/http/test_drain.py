"""The end of the process: SIGTERM lets running answers finish, and ends those that take too long properly."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from .conftest import StartSidecar
from .engine import (
    END,
    HALF,
    REST,
    Answer,
    Gate,
    Peer,
    Received,
    ScriptedEngine,
    answers,
    chat_chunk,
    chunked,
    event,
    prefills,
    says,
    stream_head,
)
from .sidecar import CHAT, MESSAGES, Sidecar, ask, children, parse_events, read_to_end


def slow_stream(gate: Gate) -> Answer:
    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head() + chunked(HALF))
        gate.wait()
        peer.send(chunked(REST) + END)

    return answer


def test_running_streams_may_finish(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    gate = Gate()
    engine.answer = slow_stream(gate)
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="20")
    with sidecar.open("POST", MESSAGES, ask()) as request:
        request.read_until(b"half ")
        sidecar.process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert sidecar.process.poll() is None
        with pytest.raises(OSError, match=r".*"):
            sidecar.request("GET", "/health/live")
        gate.open()
        rest = request.whole()
        assert [name for name, _ in rest.events()][-1] == "message_stop"
    began = time.monotonic()
    assert sidecar.process.wait(15) == 0
    assert time.monotonic() - began < 10
    sidecar.wait_for_record(outcome="ok")


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_streams_beyond_the_drain_get_an_error_event(
    start_sidecar: StartSidecar, engine: ScriptedEngine, path: str
) -> None:
    gate = Gate()
    engine.answer = slow_stream(gate)
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="1")
    with sidecar.open("POST", path, ask()) as request:
        request.read_until(b"half ")
        began = time.monotonic()
        sidecar.process.send_signal(signal.SIGTERM)
        rest = request.whole()  # http.client fails on a bare cut
        took = time.monotonic() - began
    gate.open()
    assert 0.9 < took < 5
    events = [data for _, data in rest.events()]
    assert "error" in events[-1]
    assert sum("error" in data for data in events) == 1
    assert b"message_stop" not in rest.body
    assert b"[DONE]" not in rest.body
    sidecar.process.wait(10)
    sidecar.wait_for_record(outcome="sidecar-error")


def counts(peer: Peer, _: Received) -> None:
    """Streams numbers, far more than lies between an engine and a client that does not read."""
    peer.send(stream_head())
    for number in range(1 << 20):
        peer.send(chunked(event(chat_chunk({"content": f"{number} {'x' * 4000}"}))))


def numbers(stream: bytes) -> list[int]:
    return [
        int(data["choices"][0]["delta"]["content"].partition(" ")[0])
        for _, data in parse_events(stream)
        if "choices" in data
    ]


def test_a_client_that_reads_late_at_the_end_gets_each_event_once(
    start_sidecar: StartSidecar, engine: ScriptedEngine
) -> None:
    engine.answer = counts
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="1")
    with sidecar.open("POST", CHAT, ask()) as request:
        engine.wait_for(1)
        time.sleep(1)  # all that there is room for is on its way by then
        sidecar.process.send_signal(signal.SIGTERM)
        time.sleep(1.5)  # the drain is over, the process is not
        body = request.whole().body
    seen = numbers(body)
    assert seen == list(range(len(seen)))
    assert len(seen) > 100
    events = [data for _, data in parse_events(body)]
    assert "error" in events[-1]
    sidecar.process.wait(10)
    assert sidecar.wait_for_record(outcome="sidecar-error")["answer_bytes"] == len(body)


def test_a_client_that_never_reads_has_a_record(
    start_sidecar: StartSidecar, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.answer = counts
    ledger = tmp_path / "ledger"
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="1", LEDGER=str(ledger))
    with sidecar.open("POST", MESSAGES, ask()):
        engine.wait_for(1)
        time.sleep(1)
        sidecar.process.send_signal(signal.SIGTERM)
        sidecar.process.wait(15)
    lines = [line for file in ledger.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [json.loads(line)["outcome"] for line in lines] == ["sidecar-error"]


def test_a_request_that_waits_at_the_end_gets_an_error(
    start_sidecar: StartSidecar, engine: ScriptedEngine
) -> None:
    engine.answer = prefills
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="1")
    with sidecar.open("POST", MESSAGES, ask()) as request:
        peer = engine.peers[engine.wait_for(1)[0].connection]
        sidecar.process.send_signal(signal.SIGTERM)
        answer = request.whole()
    assert (answer.status, answer.json()["error"]["type"]) == (503, "overloaded_error")
    assert int(answer.headers["retry-after"]) <= 50
    peer.wait_until_closed()
    sidecar.process.wait(10)


@pytest.mark.parametrize("path", [MESSAGES, CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("sent", [0, 100, 3_000_000])
def test_a_request_that_is_still_coming_at_the_end_gets_an_error(
    start_sidecar: StartSidecar, engine: ScriptedEngine, path: str, sent: int
) -> None:
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="1")
    body = json.dumps(ask(content="x" * 4_000_000)).encode()
    with sidecar.connect(10) as client:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body[:sent])
        time.sleep(0.2)
        began = time.monotonic()
        sidecar.process.send_signal(signal.SIGTERM)
        answer = read_to_end(client)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"shutting down" in answer
    assert (b'"type":"overloaded_error"' in answer) == (path == MESSAGES)
    assert 0.9 < time.monotonic() - began < 3
    sidecar.process.wait(10)
    assert not engine.requests


def test_a_quiet_sidecar_ends_at_once(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="20")
    with sidecar.connect():  # an idle client keeps nothing
        began = time.monotonic()
        assert sidecar.stop() == 0
        assert time.monotonic() - began < 5


def test_sigint_ends_it_too(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = start_sidecar(engine.url)
    os.kill(sidecar.process.pid, signal.SIGINT)
    assert sidecar.process.wait(10) == 0


def test_what_comes_on_a_kept_connection(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Errors, streams and answers one after the other on one client connection."""
    with sidecar.connect() as connection:
        for answer, status in ((says("hi"), b"200"), (answers(429, {"error": {"message": "x"}}), b"429")):
            engine.answer = answer
            body = json.dumps(ask(stream=False)).encode()
            head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            connection.sendall(head + body)
            assert connection.recv(65536).startswith(b"HTTP/1.1 " + status)
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 200")


def test_a_worker_without_its_main_process_stops(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    """Else it would hold the port, and no new sidecar could start."""
    sidecar = start_sidecar(engine.url)
    sidecar.process.kill()
    sidecar.process.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            sidecar.request("GET", "/health/live")
        except OSError:
            return
        time.sleep(0.1)
    pytest.fail("the worker still serves")


def test_a_second_interrupt_changes_nothing(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    """A terminal sends Ctrl-C to the main process and to its worker alike."""
    engine.answer = slow_stream(Gate())
    sidecar = start_sidecar(engine.url, DRAIN_SECONDS="2")
    family = [sidecar.process.pid, *children(sidecar.process.pid)]
    with sidecar.open("POST", MESSAGES, ask()) as request:
        request.read_until(b"half ")
        for _ in range(2):
            for pid in family:
                os.kill(pid, signal.SIGINT)
            time.sleep(0.5)
        assert b"event: error" in request.whole().body
    assert sidecar.process.wait(timeout=15) == 0


def test_what_is_refused_is_counted(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    sidecar = start_sidecar(engine.url, API_KEYS="key")
    assert sidecar.post(CHAT, ask()).status == 401
    metrics = sidecar.request("GET", "/metrics").body.decode()
    assert 'foreword_exchanges_total{route="chat",status="401"} 1.0' in metrics
    assert 'foreword_rule_total{rule="billing-header",state="unknown"} 0.0' in metrics

"""Many streams at once, slow readers, large bodies and any cut of the engine's bytes."""

import json
import random
import re
import resource
import threading
import time

import pytest

from .conftest import StartSidecar
from .crowd import body_of, crowd, post
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
    event,
    says,
    stream_head,
)
from .sidecar import CHAT, MESSAGES, Sidecar, ask, parse_events

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _open_files() -> None:
    """Thousands of sockets on the tests' own side."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def counts(steps: int, pause: float) -> Answer:
    """Streams the number that stands in the prompt, with the number of each step."""

    def answer(peer: Peer, request: Received) -> None:
        name = request.json()["messages"][-1]["content"]
        peer.send(stream_head() + chunked(event(chat_chunk({"role": "assistant", "content": ""}))))
        for step in range(steps):
            time.sleep(pause)
            peer.send(chunked(event(chat_chunk({"content": f"{name}:{step} "}))))
        peer.send(chunked(event(chat_chunk({}, "stop")) + event("[DONE]")) + END)

    return answer


def said(stream: bytes) -> str:
    """All text of an answer, whatever its dialect."""
    pieces = []
    for name, data in parse_events(stream):
        if name == "content_block_delta":
            pieces.append(data["delta"].get("text", ""))
        elif not name and data != "[DONE]":
            pieces.append(data["choices"][0]["delta"].get("content", ""))
    return "".join(pieces)


def test_every_event_of_500_streams_arrives(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    steps = 10
    engine.answer = counts(steps, 0.05)
    requests = [post(MESSAGES if n % 2 else CHAT, ask(content=str(n))) for n in range(500)]
    for n, answer in enumerate(crowd(sidecar.port, requests)):
        stream = body_of(answer)
        assert said(stream) == "".join(f"{n}:{step} " for step in range(steps))
        assert stream.endswith(b"data: [DONE]\n\n" if n % 2 == 0 else b'{"type":"message_stop"}\n\n')
    assert len(engine.requests) == 500


def test_1300_open_streams(start_sidecar: StartSidecar, engine: ScriptedEngine) -> None:
    """A server with default bounds leaves number 1025 hanging without a word."""
    count = 1300
    gate = threading.Event()
    begun = threading.Semaphore(0)
    rss: list[int] = []

    def answer(peer: Peer, request: Received) -> None:
        begun.release()
        assert gate.wait(60)
        says("hi")(peer, request)

    engine.answer = answer
    sidecar = start_sidecar(engine.url)

    def open_the_gate() -> None:
        for _ in range(count):
            begun.acquire(timeout=40)
        rss.append(sidecar.rss_bytes())
        gate.set()

    threading.Thread(target=open_the_gate, daemon=True).start()
    answered = crowd(sidecar.port, [post(MESSAGES, ask())] * count, seconds=90)
    assert len(answered) == count
    assert all(answer.startswith(b"HTTP/1.1 200 ") and b"message_stop" in answer for answer in answered)
    print(f"{count} open streams: {rss[0] / MIB:.0f} MiB")
    assert rss[0] < 300 * MIB


FLOOD = 64 * MIB


def floods(peer: Peer, request: Received) -> None:
    """64 MiB of stream for the one who asks for it, a few words for others."""
    if request.json()["messages"][-1]["content"] != "flood":
        return says("one two three")(peer, request)
    peer.send(stream_head())
    data = chunked(event(chat_chunk({"content": "x" * 65_000})))
    for _ in range(FLOOD // len(data)):
        peer.send(data)
    peer.send(chunked(event(chat_chunk({}, "stop")) + event("[DONE]")) + END)
    return None


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_client_that_does_not_read(start_sidecar: StartSidecar, engine: ScriptedEngine, path: str) -> None:
    sidecar = start_sidecar(engine.url)
    engine.answer = floods
    sidecar.post(path, ask())
    before = sidecar.rss_bytes()
    with sidecar.open("POST", path, ask(content="flood")) as slow:
        engine.wait_for(2)
        took = []
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            began = time.monotonic()
            answer = sidecar.post(path, ask())
            took.append(time.monotonic() - began)
            assert said(answer.body).split() == ["one", "two", "three"]
        grown = sidecar.rss_bytes() - before
        print(f"a client that does not read: {grown / MIB:.1f} MiB; others: {len(took)} answers")
        # What the kernel takes aside, 256 KiB may lie in the sidecar, twice for the hand-over.
        assert grown < 16 * MIB
        assert sorted(took)[len(took) // 2] < 0.5
        whole = slow.whole()
    text = said(whole.body)
    assert len(text) == FLOOD // len(chunked(event(chat_chunk({"content": "x" * 65_000})))) * 65_000
    assert whole.body.endswith(b"data: [DONE]\n\n" if path == CHAT else b'{"type":"message_stop"}\n\n')
    sidecar.wait_for_record(outcome="ok", answer_bytes=len(whole.body))


def test_a_client_that_does_not_read_and_leaves(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    engine.answer = floods
    with sidecar.open("POST", MESSAGES, ask(content="flood")) as slow:
        peer = engine.peers[engine.wait_for(1)[0].connection]
        time.sleep(0.5)
        assert not peer.closed.is_set()
        slow.leave()
    assert peer.closed.wait(2), "the engine still writes for a client that left"
    sidecar.wait_for_record(outcome="left")


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_a_request_of_20_mb(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    engine.answer = says("hi")
    text = "".join(random.Random(7).choices('abcdefgh \n\\"é', k=1_000_000)) * 20
    body = json.dumps(ask(content=text), ensure_ascii=False, separators=(",", ":")).encode()
    answer = sidecar.post(path, body)
    assert answer.status == 200
    received = engine.requests[0].json()
    assert received["messages"][-1]["content"] == text


@pytest.mark.case("B251")
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_nothing_is_held_back(sidecar: Sidecar, engine: ScriptedEngine, path: str) -> None:
    """Each word reaches the client before the engine writes the next."""
    read = threading.Semaphore(0)
    words = ["first ", "second ", "third "]

    def answer(peer: Peer, _: Received) -> None:
        peer.send(stream_head())
        for word in words:
            peer.send(chunked(event(chat_chunk({"content": word}))))
            assert read.acquire(timeout=10)
        peer.send(chunked(event(chat_chunk({}, "stop")) + event("[DONE]")) + END)

    engine.answer = answer
    with sidecar.open("POST", path, ask()) as stream:
        for word in words:
            began = time.monotonic()
            stream.read_until(word.encode())
            print(f"{word}: {(time.monotonic() - began) * 1000:.1f} ms")
            assert time.monotonic() - began < 2
            read.release()
        stream.whole()


RICH = b"".join(
    [
        b": hello\n\n",
        event(chat_chunk({"role": "assistant", "content": ""})),
        event(chat_chunk({"reasoning": "hm é 🙂"})),
        *chat_events("one \u00e9 🙂 \r\n two", None, finish="stop"),
    ]
).replace(event("[DONE]"), event({"id": "c", "choices": [], "usage": USAGE}) + event("[DONE]"))


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_any_cut_gives_the_same_bytes(
    sidecar: Sidecar, engine: ScriptedEngine, path: str, ends: bytes
) -> None:
    stream = RICH.replace(b"\n", ends)

    def sends(framed: bytes, cuts: list[int]) -> Answer:
        def answer(peer: Peer, _: Received) -> None:
            for begin, end in zip([0, *cuts], [*cuts, len(framed)], strict=True):
                peer.send(framed[begin:end])
                time.sleep(0.0005)

        return answer

    def once(framed: bytes, cuts: list[int]) -> bytes:
        engine.answer = sends(framed, cuts)
        answer = sidecar.post(path, ask())
        assert answer.status == 200
        return re.sub(rb"msg_[0-9A-Za-z]{24}", b"msg_", answer.body)

    whole = once(stream_head() + chunked(stream) + END, [])
    assert b"one " in whole
    draw = random.Random(f"{path}{ends!r}")
    for _ in range(25):
        places = sorted(draw.sample(range(1, len(stream)), draw.randint(1, 30)))
        chunks = [stream[b:e] for b, e in zip([0, *places], [*places, len(stream)], strict=True)]
        framed = stream_head() + b"".join(map(chunked, chunks)) + END
        cuts = sorted(draw.sample(range(1, len(framed)), draw.randint(0, 40)))
        assert once(framed, cuts) == whole, (places, cuts)


def test_large_bodies_do_not_hold_up_streams(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Thirty bodies of 5 MB come while a stream runs: none of its events waits for long."""
    large = post("/v1/embeddings", b'{"x":"%b"}' % (b"a" * 5_000_000))
    done = threading.Event()

    def answer(peer: Peer, request: Received) -> None:
        if request.target != CHAT:
            return answers(200, {"ok": True}, ("connection", "close"))(peer, request)
        peer.send(stream_head())
        while not done.is_set():
            peer.send(chunked(event(chat_chunk({"content": f"{time.monotonic()} "}))))
            time.sleep(0.01)
        peer.send(chunked(event(chat_chunk({}, "stop")) + event("[DONE]")) + END)
        return None

    engine.answer = answer
    late: list[float] = []

    def watch() -> None:
        with sidecar.open("POST", CHAT, ask()) as stream:
            while b"[DONE]" not in (data := stream.response.read1(65536)):
                now = time.monotonic()
                late.extend(now - float(stamp) for stamp in re.findall(rb'"content": "([0-9.]+) "', data))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(15):
        crowd(sidecar.port, [large, large])
    done.set()
    watcher.join(20)
    late.sort()
    print(f"{len(late)} events, median {late[len(late) // 2] * 1e3:.1f} ms, worst {late[-1] * 1e3:.1f} ms")
    assert late[len(late) // 2] < 0.1
    assert late[-1] < 1

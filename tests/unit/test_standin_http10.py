"""The Strata stand-in as a process: HTTP/1.0, connections that end with their replies, and its log in a file."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_standin_process import START, drain, send, wait_for

from foreword.demo.processes import free_port


@dataclass
class Running:
    port: int
    log: Path


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    port, log = free_port(), tmp_path_factory.mktemp("strata") / "engine.log"
    flags = [
        "--port",
        str(port),
        "--kind",
        "strata",
        "--model",
        "tiny",
        "--log",
        str(log),
        "--decode-rate",
        "500",
    ]
    flags += ["--conversation-cache-mib", "1024", "--prefill-rate", "20000", "--prefill-step", "500"]
    with subprocess.Popen([sys.executable, "-c", START, *flags]) as process:
        try:
            wait_for(port)
            yield Running(port, log)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0


def chat(text: str, *, stream: bool = False, say: str = "</think>ok") -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    asked = {"model": "tiny", "messages": messages, "stream": stream, "vllm_xargs": {"say": say}}
    return asked | ({"stream_options": {"include_usage": True}} if stream else {})


def ask(port: int, body: dict[str, Any]) -> Any:
    with send(port, body) as connection:
        return json.loads(drain(connection).partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("stream", [False, True])
def test_each_reply_is_http_1_0_and_ends_with_its_connection(engine: Running, stream: bool) -> None:
    with send(engine.port, chat("hi", stream=stream)) as connection:
        head, _, body = drain(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head.lower()
    if stream:
        assert body.endswith(b"data: [DONE]\n\n")
        assert b"content-length" not in head
    else:
        assert b"content-length: %d" % len(body) in head


def test_parking_end_to_end(engine: Running) -> None:
    one, two = chat("a" * 4 * 8_000), chat("b" * 4 * 8_000)
    answers = [ask(engine.port, body) for body in (one, two, one, two)]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[:2] == [0, 0]
    assert cached[2] == cached[3] == answers[0]["usage"]["prompt_tokens"] - 1
    text = engine.log.read_text()
    assert text.count(" restored ") == 2
    assert f"prompt {cached[2] + 1} tokens = {cached[2]} reused + 1 read in " in text
    # The log was moved away: the next line begins a new one.
    engine.log.rename(engine.log.with_suffix(".1"))
    ask(engine.port, chat("c"))
    assert engine.log.read_text().count("strata serve: prompt") == 1


def test_a_client_that_leaves_lets_the_next_one_in(engine: Running) -> None:
    began = time.monotonic()
    leaving = send(engine.port, chat("z" * 4 * 100_000, stream=True))
    time.sleep(0.3)
    leaving.close()
    ask(engine.port, chat("quick"))
    assert time.monotonic() - began < 3


def test_what_is_no_request_is_refused(engine: Running) -> None:
    for raw, status in (
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"411"),
    ):
        with socket.create_connection(("127.0.0.1", engine.port), 10) as connection:
            connection.sendall(raw)
            assert drain(connection).startswith(b"HTTP/1.0 " + status)


def test_metrics_in_both_forms(engine: Running) -> None:
    for path, kind in (("/metrics", b"application/json"), ("/metrics?format=prometheus", b"text/plain")):
        with send(engine.port, path=path, method="GET") as connection:
            assert b"content-type: " + kind in drain(connection)


def test_parking_without_checkpoints_does_not_start() -> None:
    flags = [
        "--port",
        str(free_port()),
        "--kind",
        "strata",
        "--conversation-cache-mib",
        "8192",
        "--prompt-cache",
        "0",
    ]
    done = subprocess.run(
        [sys.executable, "-c", START, *flags], capture_output=True, timeout=20, check=False, text=True
    )
    assert done.returncode == 2
    assert "--conversation-cache-mib needs --prompt-cache" in done.stderr

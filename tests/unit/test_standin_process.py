"""The stand-in as a process of its own: what only a real server on a real socket can show."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from foreword.demo.processes import free_port

START = "import sys; from foreword.standin import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A running stand-in that reads 2,000 tokens a second."""
    port = free_port()
    flags = ["--port", str(port), "--model", "tiny", "--prefill-rate", "2000", "--prefill-step", "100"]
    with subprocess.Popen([sys.executable, "-c", START, *flags, "--decode-rate", "200"]) as process:
        try:
            wait_for(port)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the stand-in did not start")


def send(
    port: int, body: Any = None, path: str = "/v1/chat/completions", method: str = "POST"
) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 10)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
    return connection


def drain(connection: socket.socket) -> bytes:
    """Everything until the other side closes. Raises ConnectionResetError for a reset."""
    found = b""
    while data := connection.recv(65_536):
        found += data
    return found


def chat(text: str = "hi", **script: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "model": "tiny",
        "messages": messages,
        "stream": True,
        "vllm_xargs": {"say": "</think>ok"} | script,
    }


def aborted(port: int) -> int:
    connection = send(port, path="/metrics", method="GET")
    text = b""
    while b"cache_config_info{" not in text:
        text += connection.recv(65_536)
    connection.close()
    (line,) = [
        line
        for line in text.decode().splitlines()
        if 'success_total{engine="0",finished_reason="abort"' in line
    ]
    return int(float(line.rpartition(" ")[2]))


def test_the_head_comes_before_the_prompt_is_read_and_an_idle_connection_ends_after_five_seconds(
    port: int,
) -> None:
    began = time.monotonic()
    with send(port, chat("x" * 4 * 800)) as connection:
        head = connection.recv(65_536)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"text/event-stream; charset=utf-8" in head
        assert b"data:" not in head
        arrived = time.monotonic()
        body = b""
        while b"[DONE]" not in body:
            body += connection.recv(65_536)
        ended = time.monotonic()
        assert ended - began > 0.35
        assert ended - arrived > 0.2
        assert drain(connection) in (b"", b"\r\n0\r\n\r\n", b"0\r\n\r\n")
        assert 4.5 < time.monotonic() - ended < 7.0


@pytest.mark.parametrize("script", [{"cut_after": 1}, {"drop": "fin"}])
def test_a_cut_is_a_close_in_the_middle(port: int, script: dict[str, Any]) -> None:
    with send(port, chat(**script)) as connection:
        answer = drain(connection)
    assert not answer.endswith(b"0\r\n\r\n")
    assert answer.count(b"data:") == script.get("cut_after", 0)
    assert bool(answer) is ("cut_after" in script)


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="needs /dev/fd to find a connection's socket")  # noqa: PTH112
@pytest.mark.parametrize("script", [{"cut_after": 1, "cut": "rst"}, {"drop": "rst"}])
def test_a_reset_is_a_reset(port: int, script: dict[str, Any]) -> None:
    with send(port, chat(**script)) as connection, pytest.raises(ConnectionResetError):
        drain(connection)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("text", ["hi", "y" * 4 * 4_000])
def test_leaving_aborts(port: int, text: str, half: bool) -> None:
    before = aborted(port)
    connection = send(port, chat(text + str(half), say_delay=0.01, say="</think>" + "word" * 500))
    time.sleep(0.3)
    if half:
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()
    deadline = time.monotonic() + 2
    while aborted(port) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert aborted(port) == before + 1
    connection.close()


def test_a_taken_port_is_an_error_and_not_a_second_server(port: int) -> None:
    second = subprocess.run(
        [sys.executable, "-c", START, "--port", str(port)], capture_output=True, timeout=20, check=False
    )
    assert second.returncode == 1
    assert f"port {port}" in second.stderr.decode()


def test_many_connections_are_served_at_once(port: int) -> None:
    say = "</think>" + "word" * 40
    connections = [send(port, chat(say=say)) for _ in range(300)]
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 20, 0))
    for connection in connections:
        body = b""
        while b"[DONE]" not in body:
            data = connection.recv(65_536)
            assert data
            body += data
        assert body.count(b'"content":"word"') == 40
        connection.close()

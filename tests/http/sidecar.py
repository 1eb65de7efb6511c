"""A real sidecar: `foreword serve` as its own process, and a plain HTTP client for it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"


def ask(stream: bool = True, content: str = "hi", **more: Any) -> dict[str, Any]:
    """A request that /v1/messages and /v1/chat/completions both understand."""
    messages = [{"role": "user", "content": content}]
    return {"model": "m", "max_tokens": 64, "messages": messages, "stream": stream, **more}


@dataclass
class Response:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[tuple[str, Any]]:
        return list(parse_events(self.body))


class Sidecar:
    """`foreword serve` in front of ``upstream``; further settings as environment variables without their prefix."""

    seconds = 30.0
    """How long a client of it waits for the next byte."""

    def __init__(self, upstream: str, log: Path, **settings: str) -> None:
        self.port = free_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREWORD_")}
        settings = {"UPSTREAM": upstream, "PORT": str(self.port), "DRAIN_SECONDS": "2", **settings}
        environment |= {f"FOREWORD_{name}": value for name, value in settings.items()}
        self.log = log
        with log.open("wb") as output:
            command = [sys.executable, "-m", "foreword", "serve"]
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        self._wait_until_live()

    def request(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        with self.open(method, path, body, headers) as stream:
            return stream.whole()

    def post(
        self, path: str, body: bytes | dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> Response:
        return self.request("POST", path, body, headers)

    def open(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Stream:
        """Sends the request; the answer is read through the stream."""
        return Stream(self.port, method, path, body, headers or {}, seconds=self.seconds)

    def connect(self, seconds: float = 30.0) -> socket.socket:
        """A bare connection, for requests that http.client would not send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def raw(self, data: bytes, seconds: float = 30.0) -> bytes:
        """Sends ``data`` as it is; everything that comes until the sidecar closes. Say `connection: close`."""
        with self.connect(seconds) as connection:
            connection.sendall(data)
            return read_to_end(connection)

    def record(self, answer: Response) -> dict[str, Any]:
        """The record of the exchange that ended in ``answer``."""
        return self.wait_for_record(request_id=answer.headers["request-id"])

    def records(self) -> list[dict[str, Any]]:
        """The exchange records logged so far."""
        records = []
        for line in self.log.read_text().splitlines(keepends=True):
            # The last line may still be under way.
            if line.startswith("{") and line.endswith("\n"):
                entry = json.loads(line)
                if "request_id" in entry and "outcome" in entry:
                    records.append(entry)
        return records

    def wait_for_record(self, seconds: float = 5.0, **expected: Any) -> dict[str, Any]:
        """The first record that has these values, once it is logged."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for record in self.records():
                if all(record.get(key) == value for key, value in expected.items()):
                    return record
            time.sleep(0.02)
        raise AssertionError(f"no record with {expected} in {self.log.read_text()}")

    def wait_until_ready(self, seconds: float = 10.0) -> None:
        """Returns once the engine was found and asked for all that the sidecar wants to know."""
        deadline = time.monotonic() + seconds
        while self.request("GET", "/health/ready").status != 200:
            assert time.monotonic() < deadline, f"the engine was not found: {self.log.read_text()}"
            time.sleep(0.02)

    def rss_bytes(self) -> int:
        """Resident memory of the process and its children."""
        total = 0
        for pid in [self.process.pid, *children(self.process.pid)]:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
        return total

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def _wait_until_live(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.request("GET", "/health/live").status == 200:
                    return
            except OSError:
                time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"the sidecar did not start: {self.log.read_text()}")


def read_to_end(connection: socket.socket) -> bytes:
    """Everything that comes until the other side closes or resets."""
    data = b""
    try:
        while piece := connection.recv(1 << 20):
            data += piece
    except ConnectionResetError:
        pass
    return data


class Stream:
    """One request under way, read as it comes."""

    def __init__(
        self,
        port: int,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None,
        headers: Mapping[str, str],
        *,
        seconds: float = 30.0,
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        sent = {"content-type": "application/json", **headers} if data is not None else dict(headers)
        self._connection.request(method, path, data, sent)
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        """The answer, once its head is there."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def read_until(self, mark: bytes) -> bytes:
        """Reads up to and with ``mark``."""
        seen = b""
        while mark not in seen:
            data = self.response.read1(65536)
            assert data, f"the answer ended before {mark!r}: {seen!r}"
            seen += data
        return seen

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer, once its head is there."""
        return {name.lower(): value for name, value in self.response.getheaders()}

    def whole(self) -> Response:
        return Response(self.response.status, self.headers, self.response.read())

    def leave(self) -> float:
        """Closes the connection without reading on; returns when."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.close()
        return time.monotonic()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def parse_events(stream: bytes) -> Iterator[tuple[str, Any]]:
    """(event name, data) of each event of a client's stream; data is JSON where it can be."""
    for block in stream.decode().split("\n\n"):
        name, data = "", []
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data.append(line.removeprefix("data: "))
        if data:
            text = "\n".join(data)
            yield name, (text if text == "[DONE]" else json.loads(text))


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found

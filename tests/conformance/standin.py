"""The stand-in engine as its own process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.http.sidecar import free_port

MODEL = "stand-in"


class StandIn:
    """`foreword engine`, as fast as it can; further flags as they are."""

    def __init__(self, log: Path, *flags: str, port: int | None = None) -> None:
        port = port or free_port()
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        fast = ("--decode-rate", "0", "--prefill-rate", "0", "--model", MODEL)
        with log.open("wb") as output:
            command = [sys.executable, "-m", "foreword", "engine", "--port", str(port), *fast, *flags]
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        self._wait_until_live()

    def last(self) -> dict[str, Any]:
        """The body of the last generation request."""
        found: dict[str, Any] = json.loads(self._fetch("/standin/last"))
        return found

    def script(self, *scripts: dict[str, Any]) -> None:
        """Scripts the next answers, in this order, for requests that bring no script of their own."""
        self._fetch("/standin/script", json.dumps({"next": list(scripts)}).encode())

    def tokens(self, body: dict[str, Any]) -> list[int]:
        """The tokens of a chat body's prompt."""
        names = ("model", "messages", "tools", "chat_template_kwargs", "add_generation_prompt")
        asked = {name: body[name] for name in names if name in body}
        found: list[int] = json.loads(self._fetch("/tokenize", json.dumps(asked).encode()))["tokens"]
        return found

    def forget(self) -> None:
        """Empties the prefix cache."""
        self._fetch("/reset_prefix_cache", b"{}")

    def _fetch(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(
            self.url + path, body, {"content-type": "application/json"} if body is not None else {}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            data: bytes = answer.read()
            return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)

    def _wait_until_live(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._fetch("/health")
            except OSError:
                time.sleep(0.02)
            else:
                return
        self._process.kill()
        self._process.wait()
        raise AssertionError(f"the stand-in engine did not start: {self._log.read_text()}")

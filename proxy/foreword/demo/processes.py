"""The demo's children: found, started on free ports, waited for, and ended whatever happens."""

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from .play import Broken

_START_SECONDS = 30.0
_STOP_SECONDS = 5.0


class Child:
    """One process that serves on a loopback port. Its output is kept to be shown where it fails."""

    def __init__(
        self, name: str, argv: list[str], port: int, ready: str, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.port = port
        self._ready = ready
        command = _command()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        own = {key: value for key, value in os.environ.items() if not key.startswith("FOREWORD_")}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [command, *argv],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=own | dict(environment),
                process_group=0,  # Ctrl-C reaches the demo alone, which then ends its children
            )
        except OSError as error:
            self._output.close()
            raise Broken(f"{name} cannot be started: {error}") from error

    def wait_until_ready(self) -> None:
        """Raises Broken where it ends instead, or takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise Broken(f"{self.name} ended with status {self._process.returncode}:\n{self._tail()}")
            if _answers(self.port, self._ready):
                return
            time.sleep(0.05)
        raise Broken(f"{self.name} did not get ready in {_START_SECONDS:.0f} s:\n{self._tail()}")

    def stop(self) -> None:
        """Ends the process, gently at first."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._output.close()

    def _tail(self) -> str:
        self._output.seek(0)
        return self._output.read()[-2_000:].decode(errors="replace").strip() or "(it printed nothing)"


@contextlib.contextmanager
def children() -> Iterator[list[Child]]:
    """A list to put children on; all of them have ended when the context has."""
    started: list[Child] = []
    try:
        yield started
    finally:
        for child in reversed(started):
            child.stop()


def free_port() -> int:
    """A loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _command() -> str:
    """The ``foreword`` command of this very environment."""
    beside = Path(sys.executable).parent / "foreword"
    found = str(beside) if beside.exists() else shutil.which("foreword")
    if found is None:
        raise Broken("the command foreword was not found: install the package first (make build)")
    return found


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

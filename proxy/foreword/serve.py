"""Starts granian with the application in one worker."""

import math
import os
import resource
import socket
import sys

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.log import LogLevels

from foreword.log import granian_config
from foreword.settings import Settings

CONNECTIONS = 16_384
"""Open connections that are served at a time. granian's own default leaves number 1025 hanging without a word."""

FAREWELL_SECONDS = 3
"""Between the end of the drain, when running exchanges get their error events, and the end of the process."""


def serve(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT. The settings are read again, from the same environment, in the worker."""
    open_standard_streams()
    if (trouble := listening_trouble(settings.host, settings.port)) is not None:
        sys.stderr.write(f"foreword: cannot listen on {settings.host}:{settings.port}: {trouble}\n")
        return 1
    raise_open_files()
    server = Granian(
        "foreword.app:create",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.ASGI,
        factory=True,
        # One worker: the core has threads of its own, and its counters and connections live in one process.
        workers=1,
        loop=Loops.uvloop,
        # Agents speak HTTP/1.1 to a plain address; being ready for HTTP/2 too takes 12 KB more a connection.
        http=HTTPModes.http1,
        websockets=False,
        backlog=CONNECTIONS,
        backpressure=CONNECTIONS,
        log_level=LogLevels.warning,
        log_dictconfig=granian_config(settings.log),
        log_access=False,
        workers_kill_timeout=math.ceil(settings.drain_seconds) + FAREWELL_SECONDS,
    )
    server.serve()
    return 0


def open_standard_streams() -> None:
    """Opens what the caller closed (``2>&-``) to nowhere, in this process and its worker: a descriptor of a connection
    must never be taken for stderr."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def listening_trouble(host: str, port: int) -> str | None:
    """Why the address cannot be listened on.

    granian shares ports (SO_REUSEPORT): without this question a second sidecar would silently get half of the
    connections of the first.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        socket.create_server((host, port), family=family).close()
    except socket.gaierror as error:
        return error.strerror
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def raise_open_files() -> None:
    """Lifts the soft limit of open files to the hard one: each stream takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""Starting the server: what stops it, before granian is asked."""

import os
import resource
import socket
import subprocess
import sys

import pytest

from foreword.serve import listening_trouble, raise_open_files


def test_a_free_port_is_no_trouble() -> None:
    assert listening_trouble("127.0.0.1", 0) is None
    assert listening_trouble("localhost", 0) is None


def test_a_port_that_is_listened_on_is_trouble_even_if_it_may_be_shared() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert listening_trouble("127.0.0.1", port) == "Address already in use"

        environment = {**os.environ, "FOREWORD_PORT": str(port)}
        command = [sys.executable, "-m", "foreword", "serve"]
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=20, check=False
        )
    assert answer.returncode == 1
    assert answer.stderr == f"foreword: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("host", ["host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_trouble(host: str) -> None:
    assert listening_trouble(host, 0)


def test_the_limit_of_open_files_is_lifted() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

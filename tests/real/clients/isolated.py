"""Runs these tests where there is no network but the loopback.

``python -m tests.real.clients.isolated [pytest options]``
Needs Linux and util-linux's unshare; where a plain user may not make namespaces, it must be run by root.
"""

import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

HERE = Path(__file__).parent

_INSIDE = "--inside"
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def alone() -> bool:
    """Whether the loopback is the only network interface."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def main() -> None:
    if sys.argv[1:2] == [_INSIDE]:
        _raise_loopback()
        options = sys.argv[2:]
        os.execv(sys.executable, [sys.executable, "-m", "pytest", str(HERE), *options])  # noqa: S606
    namespace = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    again = [sys.executable, "-m", "tests.real.clients.isolated", _INSIDE, *sys.argv[1:]]
    os.execvp("unshare", [*namespace, *again])  # noqa: S606


if __name__ == "__main__":
    main()

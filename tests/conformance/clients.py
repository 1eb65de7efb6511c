"""What the SDKs are told of a sidecar."""

import time
from typing import TypedDict

from tests.http.sidecar import Sidecar

SECONDS = 20.0
"""The SDKs' time limit, so that no test waits for their ten minutes."""


class Options(TypedDict):
    """What both SDKs' clients take."""

    api_key: str
    max_retries: int
    timeout: float


ONCE: Options = {"api_key": "sk-conformance", "max_retries": 0, "timeout": SECONDS}
"""A client that tries once."""


def base_url(sidecar: Sidecar) -> str:
    """What Anthropic's SDK takes; OpenAI's wants ``/v1`` behind it."""
    return f"http://127.0.0.1:{sidecar.port}"


def wait_until_ready(sidecar: Sidecar, seconds: float = 10.0) -> None:
    """Until the sidecar knows its engine."""
    deadline = time.monotonic() + seconds
    while sidecar.request("GET", "/health/ready").status != 200:
        assert time.monotonic() < deadline, f"no engine was found: {sidecar.log.read_text()}"
        time.sleep(0.05)

"""What the SDKs are told of a sidecar."""

import time

from tests.http.sidecar import Sidecar

KEY = "sk-conformance"
SECONDS = 20.0
"""The SDKs' time limit, so that no test waits for their ten minutes."""


def base_url(sidecar: Sidecar) -> str:
    """What Anthropic's SDK takes; OpenAI's wants ``/v1`` behind it."""
    return f"http://127.0.0.1:{sidecar.port}"


def wait_until_ready(sidecar: Sidecar, seconds: float = 10.0) -> None:
    """Until the sidecar knows its engine."""
    deadline = time.monotonic() + seconds
    while sidecar.request("GET", "/health/ready").status != 200:
        assert time.monotonic() < deadline, f"no engine was found: {sidecar.log.read_text()}"
        time.sleep(0.05)

"""What the tests with real engines and with real clients share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.http.sidecar import Sidecar
from tests.real.patience import ANSWER_SECONDS

StartSidecar = Callable[..., Sidecar]


@pytest.fixture
def start_sidecar(tmp_path: Path) -> Iterator[StartSidecar]:
    """Starts sidecars, which end with the test."""
    with ExitStack() as stack:

        def start(upstream: str, **settings: str) -> Sidecar:
            log = tmp_path / f"sidecar-{len(list(tmp_path.iterdir()))}.log"
            sidecar = stack.enter_context(Sidecar(upstream, log, **settings))
            sidecar.seconds = ANSWER_SECONDS
            return sidecar

        yield start

"""Fixtures of the HTTP tests: a scripted engine and a real sidecar in front of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .engine import ScriptedEngine
from .sidecar import Sidecar

StartSidecar = Callable[..., Sidecar]


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine that answers what the test scripts."""
    with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
def start_sidecar(tmp_path: Path) -> Iterator[StartSidecar]:
    """Starts sidecars, which end with the test."""
    with ExitStack() as stack:

        def start(upstream: str, **settings: str) -> Sidecar:
            log = tmp_path / f"sidecar-{len(list(tmp_path.iterdir()))}.log"
            return stack.enter_context(Sidecar(upstream, log, **{"ENGINE": "vllm", **settings}))

        yield start


@pytest.fixture
def sidecar(engine: ScriptedEngine, start_sidecar: StartSidecar) -> Sidecar:
    """A sidecar with default settings in front of ``engine``."""
    return start_sidecar(engine.url)

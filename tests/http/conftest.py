"""Fixtures of the HTTP tests: a scripted engine and real sidecars in front of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .engine import ScriptedEngine
from .sidecar import Sidecar

StartSidecar = Callable[..., Sidecar]


class House:
    """One engine and the sidecars in front of it, one for each set of settings, shared by a module's tests."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._sidecars: dict[frozenset[tuple[str, str]], Sidecar] = {}
        self.engine = stack.enter_context(ScriptedEngine())

    def sidecar(self, **settings: str) -> Sidecar:
        """The sidecar with these settings; it is started at the first call."""
        # A shared engine sees no more of the other sidecars than their probes.
        settings = {"ENGINE": "vllm", "ENGINE_METRICS_SECONDS": "0", **settings}
        key = frozenset(settings.items())
        if key not in self._sidecars:
            log = self._folder / f"sidecar-{len(self._sidecars)}.log"
            sidecar = Sidecar(self.engine.url, log, **settings)
            self._sidecars[key] = self._stack.enter_context(sidecar)
        return self._sidecars[key]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Everything that a module's tests share."""
    with ExitStack() as stack:
        yield House(tmp_path_factory.mktemp("house"), stack)


@pytest.fixture
def engine(house: House) -> ScriptedEngine:
    """An engine that answers what the test scripts."""
    house.engine.reset()
    return house.engine


@pytest.fixture
def sidecar(house: House, engine: ScriptedEngine) -> Sidecar:
    """A sidecar with default settings in front of ``engine``."""
    return house.sidecar()


@pytest.fixture
def sidecar_with(house: House, engine: ScriptedEngine) -> StartSidecar:
    """Sidecars with settings of the test's own in front of ``engine``; equal ones are shared by the module."""
    return house.sidecar


@pytest.fixture
def start_sidecar(tmp_path: Path) -> Iterator[StartSidecar]:
    """Starts sidecars of the test's own, in front of any upstream. They end with the test."""
    with ExitStack() as stack:

        def start(upstream: str, **settings: str) -> Sidecar:
            log = tmp_path / f"sidecar-{len(list(tmp_path.iterdir()))}.log"
            return stack.enter_context(Sidecar(upstream, log, **{"ENGINE": "vllm", **settings}))

        yield start

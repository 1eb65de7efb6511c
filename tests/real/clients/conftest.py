"""The scripted engine, and the rule that nothing but the loopback may be in reach."""

from collections.abc import Iterator

import pytest
from tests.http.engine import ScriptedEngine
from tests.real.clients.isolated import alone


@pytest.fixture(scope="session", autouse=True)
def no_network() -> None:
    if not alone():
        pytest.skip("other networks are in reach: run python -m tests.real.clients.isolated")


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine

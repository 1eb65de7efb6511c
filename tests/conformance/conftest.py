"""Fixtures of the conformance tests: the official SDKs on a real sidecar.

``standin_*`` have the stand-in engine behind it, which renders, caches and generates; the others a scripted engine,
which says whatever a test wants to be said. Sidecars and clients serve the whole session.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anthropic
import openai
import pytest
from tests.http.engine import ScriptedEngine
from tests.http.sidecar import Sidecar

from .clients import ONCE, base_url, wait_until_ready
from .standin import StandIn


@dataclass
class Scripted:
    """A scripted engine and the sidecar in front of it."""

    engine: ScriptedEngine
    sidecar: Sidecar


@pytest.fixture(scope="session", autouse=True)
def plain_environment() -> Iterator[None]:
    """The SDKs take base URLs, keys, log levels and proxies from the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("ANTHROPIC_", "OPENAI_")) or name.lower().endswith("_proxy"):
                patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory, plain_environment: None) -> Iterator[Scripted]:
    log = tmp_path_factory.mktemp("scripted") / "sidecar.log"
    with ScriptedEngine() as engine, Sidecar(engine.url, log, ENGINE="vllm") as sidecar:
        yield Scripted(engine, sidecar)


@pytest.fixture
def engine(scripted: Scripted) -> ScriptedEngine:
    """The scripted engine, which has forgotten what the last test sent."""
    scripted.engine.all.clear()
    return scripted.engine


@pytest.fixture(scope="session")
def sidecar(scripted: Scripted) -> Sidecar:
    """The sidecar in front of ``engine``."""
    return scripted.sidecar


@pytest.fixture(scope="session")
def claude(sidecar: Sidecar) -> Iterator[anthropic.Anthropic]:
    """Anthropic's SDK, which tries once."""
    with anthropic.Anthropic(base_url=base_url(sidecar), **ONCE) as client:
        yield client


@pytest.fixture(scope="session")
def gpt(sidecar: Sidecar) -> Iterator[openai.OpenAI]:
    """OpenAI's SDK, which tries once."""
    with openai.OpenAI(base_url=base_url(sidecar) + "/v1", **ONCE) as client:
        yield client


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(tmp_path_factory.mktemp("standin") / "engine.log") as standin:
        yield standin


@pytest.fixture(scope="session")
def standin_sidecar(
    standin: StandIn, tmp_path_factory: pytest.TempPathFactory, plain_environment: None
) -> Iterator[Sidecar]:
    """A sidecar that finds out by itself what stands behind it."""
    log: Path = tmp_path_factory.mktemp("standin") / "sidecar.log"
    with Sidecar(standin.url, log) as sidecar:
        wait_until_ready(sidecar)
        yield sidecar


@pytest.fixture(scope="session")
def standin_claude(standin_sidecar: Sidecar) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=base_url(standin_sidecar), **ONCE) as client:
        yield client


@pytest.fixture(scope="session")
def standin_gpt(standin_sidecar: Sidecar) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url(standin_sidecar) + "/v1", **ONCE) as client:
        yield client

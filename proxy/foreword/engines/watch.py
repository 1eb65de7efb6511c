"""The task that keeps asking the engine what it is, and tells the core."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from foreword.engines.base import Fetch, FetchError
from foreword.engines.probe import ENGINES, Finding, probe
from foreword.engines.state import EngineState
from foreword.engines.template import Template
from foreword.settings import Settings

logger = logging.getLogger(__name__)

UNREACHABLE_SECONDS = 1.0
"""Between two probes of an engine that is away or not ready yet."""
REACHABLE_SECONDS = 10.0
"""Between two probes of an engine that serves: shorter than any engine takes to come back with another model."""


class Core(Protocol):
    """The part of the Rust core that takes what was learnt."""

    def update(
        self,
        *,
        engine: str | None = None,
        models: Sequence[str] | None = None,
        late_system: str | None = None,
        template_order: str | None = None,
    ) -> None: ...


class Watch:
    """Probes the engine at the start and ever after. An absent engine is no error; a changed one is picked up."""

    def __init__(self, settings: Settings, fetch: Fetch, core: Core, state: EngineState) -> None:
        self._settings = settings
        self._fetch = fetch
        self._core = core
        self._state = state
        self._known: tuple[object, ...] | None = None
        self._complaint = ""
        self._doubt = asyncio.Event()

    async def run(self) -> None:
        """Probes until it is cancelled."""
        while True:
            await self._pause(REACHABLE_SECONDS if await self.once() else UNREACHABLE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Waits, less long when there is doubt; but never less than for an engine that is away."""
        try:
            await asyncio.wait_for(self._doubt.wait(), seconds)
        except TimeoutError:
            return
        self._doubt.clear()
        await asyncio.sleep(min(seconds, UNREACHABLE_SECONDS))

    def doubt(self, *, restarted: bool = False) -> None:
        """Something else has seen that the engine may not be what it was: probe it soon."""
        if restarted:
            self._known = None
        self._doubt.set()

    async def once(self) -> bool:
        """One probe; says whether the engine serves. Never raises: what a probe meets must not stop the sidecar."""
        try:
            finding = await probe(self._fetch, self._settings.engine)
            if finding.ready:
                await self._take(finding)
        except FetchError as error:
            self._away(f"no answer from the engine: {error}")
            return False
        except Exception as error:  # an answer of a form that nobody foresaw
            self._away(f"the engine could not be probed: {error!r}")
            return False
        if not finding.ready:
            self._away("the engine answers, but does not serve yet")
        return finding.ready

    def _away(self, complaint: str) -> None:
        if complaint != self._complaint:
            logger.warning("%s", complaint)
        self._complaint = complaint
        self._state.reachable = False
        # A restart may bring another model or template under the same name: ask anew.
        self._known = None

    async def _take(self, finding: Finding) -> None:
        state = self._state
        known = (finding.kind, finding.version, finding.models)
        if known != self._known:
            late_system = await self._late_system(finding)
            self._core.update(
                engine=finding.kind,
                models=finding.models,
                late_system=late_system,
                template_order=await self._order(finding),
            )
            state.kind, state.version, state.models = finding.kind, finding.version, finding.models
            state.window, state.late_system = finding.window, late_system
            logger.info(
                "engine: %s %s, models: %s, late system messages: %s",
                finding.kind,
                finding.version or "(version not told)",
                ", ".join(finding.models) or "(none told)",
                late_system or self._settings.rule_late_system,
            )
            if finding.asks_for_key:
                logger.warning(
                    "the engine asks for a key: with FOREWORD_UPSTREAM_API_KEY it could be asked for its models"
                )
            self._known = known
        self._complaint = ""
        state.seen()

    async def _late_system(self, finding: Finding) -> str | None:
        """What ``auto`` comes to with this engine; None when it was set by hand."""
        if self._settings.rule_late_system != "auto":
            return None
        engine = ENGINES[finding.kind]
        if engine.late_system is not None:
            return engine.late_system
        if not finding.models:
            return "tool"
        in_place = await Template(engine, self._fetch, finding.models[0]).prints_late_system_in_place()
        return "system" if in_place else "tool"

    async def _order(self, finding: Finding) -> str | None:
        """What the template prints first; None when it was set by hand or the engine does not tell."""
        if self._settings.template_order != "auto" or not finding.models:
            return None
        return await Template(ENGINES[finding.kind], self._fetch, finding.models[0]).order()

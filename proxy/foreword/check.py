"""``foreword check``: what the configured engine can do, and what of it stands in the way of a warm prefix cache."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import orjson

from foreword.engines.base import Answer, Fetch, FetchError, Json, as_object, count_of
from foreword.engines.direct import Direct
from foreword.engines.probe import ENGINES, Finding, probe
from foreword.engines.template import Template
from foreword.settings import Settings

Level = Literal["good", "note", "finding"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report."""

    name: str
    level: Level
    value: object
    text: str


class Preflight:
    """Asks one engine, step by step."""

    def __init__(self, settings: Settings, fetch: Fetch) -> None:
        self._settings = settings
        self._fetch = fetch

    async def lines(self) -> list[Line]:
        """The report. An engine that goes away in between ends it with a finding."""
        lines: list[Line] = []
        try:
            engine = await probe(self._fetch, self._settings.engine)
            lines += self._identity(engine)
            if engine.ready and engine.models:
                for step in (
                    self._header,
                    self._order,
                    self._late_system,
                    self._cached_tokens,
                    self._stream_usage,
                ):
                    lines.append(await step(engine))
        except FetchError as error:
            lines.append(
                Line("engine", "finding", None, f"{self._settings.upstream} cannot be reached: {error}")
            )
        return lines

    def _identity(self, engine: Finding) -> Iterator[Line]:
        version = engine.version or "version not told"
        if engine.ready:
            yield Line("engine", "good", engine.kind, f"{engine.kind} {version} at {self._settings.upstream}")
        else:
            yield Line(
                "engine", "finding", engine.kind, f"{engine.kind} {version} answers, but does not serve yet"
            )
        window = "window not told" if engine.window is None else f"window {engine.window:,} tokens"
        if engine.models:
            yield Line("models", "good", list(engine.models), f"{', '.join(engine.models)} ({window})")
        else:
            yield Line(
                "models",
                "finding",
                [],
                "the engine lists no model; does it ask for FOREWORD_UPSTREAM_API_KEY?",
            )

    def _template(self, engine: Finding) -> Template:
        return Template(ENGINES[engine.kind], self._fetch, engine.models[0])

    async def _header(self, engine: Finding) -> Line:
        name = "billing header"
        stripped = await self._template(engine).strips_billing_header()
        rule = self._settings.rule_billing_header
        if stripped:
            return Line(
                name,
                "good",
                True,
                "the engine itself takes it out of the plain form; rule 1 also of the others",
            )
        what = "the engine does not say" if stripped is None else "the engine keeps it"
        if rule:
            return Line(name, "good", stripped, f"{what}; rule 1 takes it out")
        return Line(
            name,
            "finding",
            stripped,
            f"{what}, and FOREWORD_RULE_BILLING_HEADER is off: no prefix survives it",
        )

    async def _order(self, engine: Finding) -> Line:
        order = await self._template(engine).order()
        if order is None:
            return Line("template order", "note", None, "the engine does not tell; tools-first is assumed")
        return Line(
            "template order", "good", order, f"{order}: a change in the one costs the prefix of the other"
        )

    async def _late_system(self, engine: Finding) -> Line:
        name, set_to = "late system messages", self._settings.rule_late_system
        kept = ENGINES[engine.kind].late_system == "system"
        in_place = kept or await self._template(engine).prints_late_system_in_place()
        if in_place:
            return Line(name, "good", True, "printed in place")
        what = "the engine does not tell where they go" if in_place is None else "not printed in place"
        if set_to in ("system", "off"):
            advice = f"FOREWORD_RULE_LATE_SYSTEM={set_to} leaves them: use auto"
            return Line(name, "finding", in_place, f"{what}, and {advice}")
        return Line(name, "good", in_place, f"{what}; rule 2 wraps them into the message before")

    async def _cached_tokens(self, engine: Finding) -> Line:
        name = "cached tokens in usage"
        body = orjson.dumps(_chat(engine.models[0]))
        await self._fetch(
            "POST", "/v1/chat/completions", body
        )  # some engines report them only when there are any
        answer = await self._fetch("POST", "/v1/chat/completions", body)
        usage = _usage(as_object(answer))
        if usage is None:
            return Line(name, "finding", None, f"a chat of one token is answered with status {answer.status}")
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if not isinstance(cached, int):
            advice = (
                "start vLLM with --enable-prompt-tokens-details"
                if engine.kind == "vllm"
                else "no rate can be told"
            )
            return Line(name, "finding", None, f"not reported: {advice}")
        asked = count_of(usage.get("prompt_tokens"))
        if cached == 0:
            text = f"reported, but a prompt of {asked} tokens, sent twice, found none: is prefix caching on?"
            return Line(name, "note", 0, text)
        return Line(name, "good", cached, f"reported: {cached} of {asked} for a prompt sent twice")

    async def _stream_usage(self, engine: Finding) -> Line:
        name = "usage of streams"
        body = {**_chat(engine.models[0]), "stream": True, "stream_options": {"include_usage": True}}
        answer = await self._fetch("POST", "/v1/chat/completions", orjson.dumps(body))
        if answer.status != 200:
            text = f"stream_options is refused with status {answer.status}; streams go without usage"
            return Line(name, "note", False, text)
        if any(_usage(event) is not None for event in _events(answer)):
            return Line(name, "good", True, "stream_options.include_usage is taken")
        return Line(name, "finding", False, "stream_options.include_usage is taken, but no usage comes")


def _chat(model: str) -> dict[str, object]:
    # Long enough for several cache blocks of any engine.
    text = "Count the birds of this list. " + " ".join(f"{n} jays and {n + 1} tits," for n in range(120))
    return {
        "model": model,
        "max_tokens": 1,
        "temperature": 0,
        "messages": [{"role": "user", "content": text}],
    }


def _usage(answer: Json | None) -> Json | None:
    usage = answer.get("usage") if answer else None
    return usage if isinstance(usage, dict) else None


def _events(answer: Answer) -> Iterator[Json]:
    for line in answer.body.splitlines():
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data.startswith(b"{"):
            try:
                event = orjson.loads(data)
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict):
                yield event


def as_table(lines: list[Line]) -> str:
    """The report for a terminal."""
    width = max(len(line.name) for line in lines)
    return "\n".join(f"{line.level:<8} {line.name:<{width}}  {line.text}" for line in lines)


def as_json(lines: list[Line]) -> str:
    """The report for machines."""
    good = not any(line.level == "finding" for line in lines)
    return orjson.dumps({"good": good, "checks": [asdict(line) for line in lines]}).decode()


def run(settings: Settings, *, machine: bool, show: Callable[[str], None]) -> int:
    """Runs the preflight and shows the report. Returns the exit status: 0 good, 1 with a finding."""
    lines = asyncio.run(Preflight(settings, Direct(settings.upstream, settings.upstream_api_key)).lines())
    show(as_json(lines) if machine else as_table(lines))
    return 1 if any(line.level == "finding" for line in lines) else 0

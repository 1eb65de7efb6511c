"""Asks the engine what it is, what its template does, and what its usage tells."""

from collections.abc import Iterator
from dataclasses import replace

import orjson

from foreword.check.line import Line
from foreword.check.watched import Watched
from foreword.engines.base import Answer, Fetch, FetchError, Json, as_object, count_of
from foreword.engines.probe import ENGINES, Finding, probe
from foreword.engines.template import Template
from foreword.settings import Settings


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
                    self._reasoning,
                    self._cached_tokens,
                    self._stream_usage,
                ):
                    lines.append(await step(engine))
                if self._settings.messages == "native":
                    lines.append(await self._own_messages(engine))
            lines += await Watched(self._settings, self._fetch).lines(engine)
        except FetchError as error:
            text = f"{self._settings.upstream} cannot be reached: {error}"
            lines.append(Line("engine", "fail", None, text, "start the engine, or correct FOREWORD_UPSTREAM"))
        return lines

    def _identity(self, engine: Finding) -> Iterator[Line]:
        version = engine.version or "version not told"
        if engine.ready:
            yield Line("engine", "ok", engine.kind, f"{engine.kind} {version} at {self._settings.upstream}")
        else:
            text = f"{engine.kind} {version} answers, but does not serve yet"
            todo = "wait until it has loaded its model; if that never ends, see that FOREWORD_UPSTREAM is an engine"
            yield Line("engine", "fail", engine.kind, text, todo)
        if engine.models:
            yield Line("models", "ok", list(engine.models), ", ".join(engine.models))
        else:
            yield Line(
                "models",
                "fail",
                [],
                "the engine lists no model",
                "set FOREWORD_UPSTREAM_API_KEY if it asks for one",
            )
        if engine.window is None:
            yield Line(
                "context length", "warn", None, "not told", "compare the clients' windows with it by hand"
            )
        else:
            yield Line("context length", "ok", engine.window, f"{engine.window:,} tokens")

    def _template(self, engine: Finding) -> Template:
        return Template(ENGINES[engine.kind], self._fetch, engine.models[0])

    async def _header(self, engine: Finding) -> Line:
        name = "billing header"
        stripped = await self._template(engine).strips_billing_header()
        if stripped:
            text = "the engine itself takes it out of the plain form; rule 1 also of the others"
            return Line(name, "ok", True, text)
        what = "the engine does not say" if stripped is None else "the engine keeps it"
        if self._settings.rule_billing_header:
            return Line(name, "ok", stripped, f"{what}; rule 1 takes it out")
        return Line(
            name, "fail", stripped, f"{what}: no prefix survives it", "set FOREWORD_RULE_BILLING_HEADER=on"
        )

    async def _order(self, engine: Finding) -> Line:
        name, set_to = "template order", self._settings.template_order
        order = await self._template(engine).order()
        if order is None and set_to != "auto":
            return Line(name, "ok", set_to, f"{set_to}, as set; the engine does not tell")
        if order is None:
            text = "the engine does not tell; tools-first is assumed"
            todo = "see which comes first in the model's chat template, and set FOREWORD_TEMPLATE_ORDER"
            return Line(name, "warn", None, text, todo)
        if set_to not in ("auto", order):
            text = f"{order}, and FOREWORD_TEMPLATE_ORDER says {set_to}"
            return Line(name, "warn", order, text, "set FOREWORD_TEMPLATE_ORDER=auto")
        text = f"{order}: a change in the one costs the prefix of the other"
        return Line(name, "ok", order, text)

    async def _late_system(self, engine: Finding) -> Line:
        name, set_to = "late system messages", self._settings.rule_late_system
        kept = ENGINES[engine.kind].late_system == "system"
        in_place = kept or await self._template(engine).prints_late_system_in_place()
        if in_place:
            return Line(name, "ok", True, "printed in place")
        what = "the engine does not tell where they go" if in_place is None else "not printed in place"
        if set_to in ("system", "off"):
            text = f"{what}, and FOREWORD_RULE_LATE_SYSTEM={set_to} leaves them"
            return Line(name, "fail", in_place, text, "set FOREWORD_RULE_LATE_SYSTEM=auto")
        return Line(name, "ok", in_place, f"{what}; rule 2 wraps them into the message before")

    async def _reasoning(self, engine: Finding) -> Line:
        dropped = await self._template(engine).drops_reasoning()
        if dropped is None:
            return Line(
                "earlier reasoning", "ok", None, "the engine does not tell whether its template keeps it"
            )
        if not dropped:
            return Line("earlier reasoning", "ok", False, "stays in later prompts")
        text = "left out once a new user message comes: that turn is read again from the reasoning on"
        todo = "expect the verdict `template` there; keep user messages few, or use a template that keeps it"
        return Line("earlier reasoning", "warn", True, text, todo)

    async def _cached_tokens(self, engine: Finding) -> Line:
        name = "cached tokens in usage"
        body = orjson.dumps(_chat(engine.models[0]))
        await self._fetch(
            "POST", "/v1/chat/completions", body
        )  # some engines report them only when there are any
        answer = await self._fetch("POST", "/v1/chat/completions", body)
        usage = _usage(as_object(answer))
        if usage is None:
            text = f"a chat of one token is answered with status {answer.status}"
            return Line(name, "fail", None, text, "ask the engine's log why")
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        todo = ENGINES[engine.kind].cached_tokens_advice
        return self._reported(name, engine, cached, count_of(usage.get("prompt_tokens")), todo)

    def _reported(self, name: str, engine: Finding, cached: object, asked: int | None, advice: str) -> Line:
        """What a prompt of ``asked`` tokens that was sent twice says of the cache. ``advice``: if it says nothing."""
        if not isinstance(cached, int):
            if engine.kind == "strata" and self._settings.engine_log is not None:
                return Line(name, "ok", None, "not reported; they are taken from the engine's log")
            return Line(name, "fail", None, "not reported", advice)
        if cached == 0:
            text = f"reported, but a prompt of {asked} tokens, sent twice, found none"
            return Line(name, "warn", 0, text, "see that prefix caching is on, and the prompt above its step")
        return Line(name, "ok", cached, f"reported: {cached} of {asked} for a prompt sent twice")

    async def _own_messages(self, engine: Finding) -> Line:
        """What FOREWORD_MESSAGES=native passes requests to; the second question is a stream, as agents ask."""
        name, path = "native /v1/messages", "/v1/messages"
        translate = "set FOREWORD_MESSAGES=translate"
        ask, told = _chat(engine.models[0]), list[Json]()
        for stream in (False, True):
            answer = await self._fetch("POST", path, orjson.dumps({**ask, "stream": stream}))
            what = "a stream" if stream else "a message"
            if answer.status in (404, 405, 501):
                text = f"the engine has no {path} (status {answer.status}); FOREWORD_MESSAGES=native needs it"
                return Line(name, "fail", None, text, translate)
            if answer.status != 200:
                text = f"{what} of one token is answered with status {answer.status}"
                return Line(name, "fail", None, text, f"ask the engine's log why, or {translate}")
            told = list(_events(answer)) if stream else [as_object(answer) or {}]
            if not any(event.get("type") == ("message_stop" if stream else "message") for event in told):
                text = f"{what} of one token is answered, but not as Anthropic's API does"
                return Line(name, "fail", None, text, translate)
        usage: dict[str, object] = {}
        for event in told:
            usage |= _usage(event) or _usage(event.get("message")) or {}
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        asked = sum(count_of(usage.get(part)) or 0 for part in parts)
        advice = f"use a version that reports {parts[1]}, or {translate}"
        if engine.kind == "vllm":
            advice = ENGINES[engine.kind].cached_tokens_advice
        line = self._reported(name, engine, usage.get(parts[1]), asked, advice)
        return replace(line, text=f"answers, also streams; cached tokens {line.text}")

    async def _stream_usage(self, engine: Finding) -> Line:
        name = "usage of streams"
        body = {**_chat(engine.models[0]), "stream": True, "stream_options": {"include_usage": True}}
        answer = await self._fetch("POST", "/v1/chat/completions", orjson.dumps(body))
        if answer.status != 200:
            text = f"stream_options is refused with status {answer.status}; streams go without usage"
            return Line(name, "warn", False, text, "use a version of the engine that takes it")
        if any(_usage(event) is not None for event in _events(answer)):
            return Line(name, "ok", True, "stream_options.include_usage is taken")
        text = "stream_options.include_usage is taken, but no usage comes"
        return Line(name, "fail", False, text, "use a version of the engine that sends it")


def _chat(model: str) -> dict[str, object]:
    # Long enough for several cache blocks of any engine.
    text = "Count the birds of this list. " + " ".join(f"{n} jays and {n + 1} tits," for n in range(120))
    return {
        "model": model,
        "max_tokens": 1,
        "temperature": 0,
        "messages": [{"role": "user", "content": text}],
    }


def _usage(answer: object) -> Json | None:
    usage = answer.get("usage") if isinstance(answer, dict) else None
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

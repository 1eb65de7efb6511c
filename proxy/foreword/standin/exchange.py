"""One generation: the engine's tokens told as vLLM tells them, in a stream or in one piece."""

import asyncio
from typing import Any

import orjson

from . import tokens
from .asks import Ask
from .engine import Engine, Run
from .faults import engine_dead
from .parse import Delta, Parser, whole
from .shapes import DONE, Finish, Shape, Usage, error_event
from .wire import Over, Wire


async def answer(ask: Ask, engine: Engine, wire: Wire, shape: Shape) -> None:
    """Runs a request to its end. Cancelling it is how a client leaves."""
    if ask.script.headers_delay:
        await asyncio.sleep(ask.script.headers_delay)
    if ask.script.drop is not None:
        await wire.drop(ask.script.drop)
        return
    if ask.script.fail is not None:
        await _fail(ask.script.fail, wire)
        return
    try:
        if ask.stream:
            await wire.open(ask.script)
            async with Run(engine, ask.prompt, ask.salt) as run:
                await _Streamed(ask, run, wire, shape).tell()
            await wire.close()
        else:
            async with Run(engine, ask.prompt, ask.salt) as run:
                body = await _generate(ask, run, shape)
            if body is None:
                await wire.json(500, {"error": engine_dead()})
            elif ask.script.cut_after is not None:
                await wire.half(body, ask.script)
            else:
                await wire.whole(200, body)
    except Over as over:
        if not over.cut:
            await wire.close()


class _Streamed:
    """A stream's state: where the parser is and what has been counted."""

    def __init__(self, ask: Ask, run: Run, wire: Wire, shape: Shape) -> None:
        self._ask = ask
        self._run = run
        self._wire = wire
        self._shape = shape
        self._parser = Parser(thinking=ask.thinking, tools=ask.tools, raw=not ask.chat)
        self._written = 0

    async def tell(self) -> None:
        ask, answer = self._ask, self._ask.answer
        if ask.echo:
            await self._chunk(Delta("content", ask.echo))
        pieces = list(tokens.split(answer.tokens))
        for n, token in enumerate(pieces):
            if await self._dies_at(n):
                return
            await self._run.step(token, ask.script.say_delay)
            if n == 0 and (first := self._shape.first(self._continuous())) is not None:
                await self._wire.chunk(first)
                if await self._dies_at(None):
                    return
            self._written += 1
            if answer.finish == "length" and n + 1 == len(pieces):
                break
            for delta in self._parser.feed(token):
                await self._chunk(delta)
            if await self._dies_at(None):
                return
        await self._end(pieces)

    async def _end(self, pieces: list[bytes]) -> None:
        ask, answer = self._ask, self._ask.answer
        if answer.finish == "length":
            # The last token's text and the reason come in one chunk.
            deltas: list[Delta | None] = [*self._parser.feed(pieces[-1])] or [None]
        else:
            if answer.stop is None:
                await self._run.step(tokens.special(tokens.END), ask.script.say_delay)
            if not pieces and (first := self._shape.first(self._continuous())) is not None:
                await self._wire.chunk(first)
            deltas = [None]
        for delta in deltas[:-1]:
            await self._chunk(delta)
        self._written = answer.completion_tokens
        finish: Finish = "tool_calls" if answer.finish == "stop" and self._parser.calls else answer.finish
        last = self._shape.chunk(
            deltas[-1], self._continuous(), finish=finish, stop=answer.stop, last=not ask.include_usage
        )
        self._run.finish(answer.finish, answer.completion_tokens)
        await self._wire.chunk(last)
        if ask.include_usage:
            usage = _usage(ask, self._run, self._written, self._parser.reasoning_tokens)
            await self._wire.chunk(self._shape.usage(usage.final(), _timings(self._run)))
        self._run.report(self._written)
        await self._wire.chunk(DONE)

    async def _chunk(self, delta: Delta | None) -> None:
        await self._wire.chunk(self._shape.chunk(delta, self._continuous()))

    async def _dies_at(self, token: int | None) -> bool:
        """Whether the script kills the engine: at an output token, or after so many chunks."""
        if not (self._wire.failing if token is None else self._ask.script.say_raise_at == token):
            return False
        self._run.finish("error")
        await self._wire.chunk(error_event(engine_dead()))
        await self._wire.chunk(DONE)
        return True

    def _continuous(self) -> dict[str, Any] | None:
        if not self._ask.continuous_usage:
            return None
        return _usage(self._ask, self._run, self._written, self._parser.reasoning_tokens).running()


async def _generate(ask: Ask, run: Run, shape: Shape) -> bytes | None:
    """The whole answer's body, or None where the script lets the engine die."""
    answer = ask.answer
    for n, token in enumerate(tokens.split(answer.tokens)):
        if n in (ask.script.say_raise_at, ask.script.error_after):
            run.finish("error")
            return None
        await run.step(token, ask.script.say_delay)
    if answer.finish == "stop" and answer.stop is None:
        await run.step(tokens.special(tokens.END), ask.script.say_delay)
    run.finish(answer.finish, answer.completion_tokens)
    run.report(answer.completion_tokens)
    if not ask.chat:
        usage = _usage(ask, run, answer.completion_tokens, 0)
        return shape.completion(ask.echo + tokens.decode(answer.tokens), usage, answer.finish, answer.stop)
    said = whole(tokens.split(answer.tokens), thinking=ask.thinking, tools=ask.tools)
    usage = _usage(ask, run, answer.completion_tokens, said.reasoning_tokens)
    finish: Finish = "tool_calls" if answer.finish == "stop" and said.calls else answer.finish
    return shape.message(said, usage, finish, answer.stop, _timings(run))


async def _fail(fail: dict[str, Any], wire: Wire) -> None:
    """The answer that a script gives instead: vLLM's error object, or any body."""
    status = int(fail.get("status", 500))
    headers = [(str(k).lower().encode(), str(v).encode()) for k, v in (fail.get("headers") or {}).items()]
    if "body" in fail:
        kind = str(fail.get("content_type", "text/html")).encode()
        await wire.whole(status, str(fail["body"]).encode(), kind, headers)
        return
    error = {
        "message": str(fail.get("message", "scripted failure")),
        "type": str(fail.get("type", "InternalServerError")),
        "param": None,
        "code": status,
    }
    await wire.whole(status, orjson.dumps({"error": error}), headers=headers)


def _usage(ask: Ask, run: Run, completion: int, reasoning: int) -> Usage:
    options = run.options
    details = options.prompt_tokens_details
    return Usage(
        prompt=run.prompt_tokens,
        completion=completion,
        reasoning=reasoning if ask.chat else None,
        cached=run.cached_tokens if details else None,
        created=run.created_tokens if details and ask.chat and options.kind == "vllm" else None,
    )


def _timings(run: Run) -> dict[str, Any]:
    """What Strata adds to an answer; vLLM has nothing of the kind."""
    if run.options.kind != "strata" or not run.options.prompt_tokens_details:
        return {}
    read = run.prompt_tokens - run.cached_tokens
    return {"timings": {"cache_n": run.cached_tokens, "prompt_n": read, "prompt_ms": run.read_seconds * 1000}}

"""The SDKs' asynchronous clients: many streams on one loop, and one that leaves."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import anthropic
import openai
from tests.http.engine import Peer, Received, ScriptedEngine, says
from tests.http.sidecar import Sidecar

from .answers import begins
from .clients import ONCE, SECONDS, base_url

STREAMS = 40


def echo(peer: Peer, request: Received) -> None:
    """Says what it was asked."""
    says(request.json()["messages"][-1]["content"])(peer, request)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 2 * SECONDS))


def test_anthropic(engine: ScriptedEngine, sidecar: Sidecar) -> None:
    async def ask(client: anthropic.AsyncAnthropic, text: str) -> str:
        async with client.messages.stream(
            model="m", max_tokens=10, messages=[{"role": "user", "content": text}]
        ) as stream:
            return await stream.get_final_text()

    async def work() -> None:
        url = base_url(sidecar)
        async with anthropic.AsyncAnthropic(base_url=url, **ONCE) as client:
            texts = [f"This is stream {n}." for n in range(STREAMS)]
            heard = await asyncio.gather(*(ask(client, text) for text in texts))
            assert [text.strip() for text in heard] == texts
            whole = await client.messages.create(
                model="m", max_tokens=10, messages=[{"role": "user", "content": "whole"}]
            )
            assert whole.content[0].type == "text"
            assert whole.content[0].text == "whole"

    engine.answer = echo
    run(work())


def test_openai(engine: ScriptedEngine, sidecar: Sidecar) -> None:
    async def ask(client: openai.AsyncOpenAI, text: str) -> str:
        async with client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": text}]
        ) as stream:
            return (await stream.get_final_completion()).choices[0].message.content or ""

    async def work() -> None:
        url = base_url(sidecar) + "/v1"
        async with openai.AsyncOpenAI(base_url=url, **ONCE) as client:
            texts = [f"This is stream {n}." for n in range(STREAMS)]
            heard = await asyncio.gather(*(ask(client, text) for text in texts))
            assert [text.strip() for text in heard] == texts

    engine.answer = echo
    run(work())


def test_a_task_that_is_cancelled(engine: ScriptedEngine, sidecar: Sidecar) -> None:
    """It leaves the stream, and the engine's work ends with it."""

    async def work() -> None:
        url = base_url(sidecar)
        async with anthropic.AsyncAnthropic(base_url=url, **ONCE) as client:
            begun = asyncio.Event()

            async def listen() -> None:
                async with client.messages.stream(
                    model="m", max_tokens=10, messages=[{"role": "user", "content": "Hi"}]
                ) as stream:
                    async for _ in stream.text_stream:
                        begun.set()

            task = asyncio.create_task(listen())
            await begun.wait()
            task.cancel()
            left = time.monotonic()
            await asyncio.gather(task, return_exceptions=True)
            peer = engine.peers[engine.requests[0].connection]
            assert await asyncio.to_thread(peer.closed.wait, 2)
            assert peer.closed_at - left < 0.5

    engine.answer = begins("Once")
    run(work())

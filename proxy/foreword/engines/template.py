"""What an engine's chat template does, found out by asking it to render.

One question serves all: *where in the rendered prompt does this part stand?* Two renderings that differ in that part
alone first differ exactly there. So nothing needs to be known of the template's marks or of the tokenizer.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from foreword.engines.base import Engine, Fetch, Json, Message, Rendering

Render = Callable[["Part"], Awaitable[Rendering | None]]

_HEADER = "x-anthropic-billing-header: cc_version=2.1.116.d8c; cc_entrypoint=cli; cch={};\n"


@dataclass(frozen=True, slots=True)
class Part:
    """The texts of a probe conversation; a variant differs in one of them."""

    tool: str = "Looks up the weather."
    system: str = "You answer briefly."
    user: str = "Which bird is blue?"
    late: str = "The user has opened a new window."
    assistant: str = "The jay is."


def _tools(part: Part) -> list[Json]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": part.tool, "parameters": parameters}
    return [{"type": "function", "function": function}]


def _head(part: Part) -> list[Message]:
    return [{"role": "system", "content": part.system}, {"role": "user", "content": part.user}]


def _with_late(part: Part) -> list[Message]:
    return [
        *_head(part),
        {"role": "system", "content": part.late},
        {"role": "assistant", "content": part.assistant},
        {"role": "user", "content": "And which is red?"},
    ]


def first_difference(one: Rendering, other: Rendering) -> int | None:
    """The position of the first difference; None when the two are the same."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


class Template:
    """The template of one engine and model."""

    def __init__(self, engine: Engine, fetch: Fetch, model: str) -> None:
        self._engine = engine
        self._fetch = fetch
        self._model = model

    async def _render(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> Rendering | None:
        return await self._engine.render(self._fetch, self._model, messages, tools)

    async def prints_late_system_in_place(self) -> bool | None:
        """Whether a system message inside the conversation is printed between its neighbours.

        False also when the template refuses it or leaves it out; None when the engine does not render.
        """
        if await self._render(_head(Part())) is None:
            return None
        renderings = [
            await self._render(_with_late(part))
            for part in (
                Part(),
                Part(user="Why is it blue?"),
                Part(late="It is night now."),
                Part(assistant="A tit is."),
            )
        ]
        base = renderings[0]
        places = [
            None if base is None or other is None else first_difference(base, other)
            for other in renderings[1:]
        ]
        user, late, assistant = places
        return user is not None and late is not None and assistant is not None and user < late < assistant

    async def order(self) -> Literal["tools-first", "system-first"] | None:
        """Whether tools or the system text come first; None when the engine does not tell."""
        base, tool, system = [
            await self._render(_head(part), _tools(part))
            for part in (Part(), Part(tool="Tells the time of day."), Part(system="Go into detail."))
        ]
        if base is None or tool is None or system is None:
            return None
        tool_place, system_place = first_difference(base, tool), first_difference(base, system)
        if tool_place is None or system_place is None:
            return None
        return "tools-first" if tool_place < system_place else "system-first"

    async def strips_billing_header(self) -> bool | None:
        """Whether the engine itself takes the billing header out of a system text that begins with it."""
        plain, one, other = [
            await self._render(_head(part))
            for part in (
                Part(),
                Part(system=_HEADER.format("1a2b3") + Part().system),
                Part(system=_HEADER.format("c4d5e") + Part().system),
            )
        ]
        if plain is None or one is None or other is None:
            return None
        return one == other == plain

    async def drops_reasoning(self) -> bool | None:
        """Whether the reasoning of a finished turn is left out once a new user message follows; None when the engine
        does not tell."""
        one, other = [
            await self._render(
                [
                    *_head(Part()),
                    {
                        "role": "assistant",
                        "content": Part().assistant,
                        "reasoning": thought,
                        "reasoning_content": thought,
                    },
                    {"role": "user", "content": "And which is red?"},
                ]
            )
            for thought in ("Jays are blue.", "Perhaps a tit?")
        ]
        return None if one is None or other is None else one == other

"""Telling engines apart, learning their templates, and keeping up with them."""

import asyncio
from collections.abc import Sequence

import orjson
import pytest
from tests.unit.engines_fake import (
    FakeEngine,
    Reply,
    dropping,
    hoisting,
    in_place,
    refusing,
    reply,
    sinking,
    stripping,
    vllm,
)
from tests.unit.engines_fake import (
    Template as FakeTemplate,
)

from foreword.engines import EngineState, FetchError, Watch, probe
from foreword.engines import watch as watch_module
from foreword.engines.base import Engine
from foreword.engines.llamacpp import LlamaCpp
from foreword.engines.probe import ENGINES
from foreword.engines.template import Template, first_difference
from foreword.engines.through import through
from foreword.engines.vllm import Vllm
from foreword.settings import EngineKind, Settings


def llamacpp(template: FakeTemplate) -> FakeEngine:
    return FakeEngine(
        {
            "/v1/models": reply({"data": [{"id": "m.gguf", "owned_by": "llamacpp"}]}, server="llama.cpp"),
            "/props": reply({"build_info": "b9000-abc", "default_generation_settings": {"n_ctx": 32768}}),
            "/health": reply({"status": "ok"}),
            "/apply-template": lambda ask: reply({"prompt": template(ask["messages"], ask.get("tools", ()))}),
        }
    )


STRATA = FakeEngine(
    {
        "/v1/models": reply({"data": [{"id": "qwen", "owned_by": "local"}]}),
        "/health": reply({"service": "strata", "status": "ok", "max_context": 262144, "model": "qwen"}),
    }
)
SGLANG = FakeEngine(
    {
        "/v1/models": reply({"data": [{"id": "glm", "owned_by": "sglang", "max_model_len": 131072}]}),
        "/get_server_info": reply({"version": "0.6.1"}),
    }
)
OTHER = FakeEngine({"/v1/models": reply({"data": [{"id": "gpt", "owned_by": "someone"}]})})
KEYED = FakeEngine(
    {"/v1/models": reply({"error": "Unauthorized"}, 401), "/version": reply({"version": "0.30.0"})}
)


@pytest.mark.parametrize(
    ("engine", "kind", "version", "models", "window"),
    [
        (vllm(in_place), "vllm", "0.32.0", ("tiny",), 65536),
        (STRATA, "strata", None, ("qwen",), 262144),
        (SGLANG, "sglang", "0.6.1", ("glm",), 131072),
        (llamacpp(in_place), "llamacpp", "b9000-abc", ("m.gguf",), 32768),
        (OTHER, "openai", None, ("gpt",), None),
        (KEYED, "vllm", "0.30.0", (), None),
    ],
    ids=["vllm", "strata", "sglang", "llamacpp", "openai", "vllm-with-a-key"],
)
def test_probe_tells_engines_apart(
    engine: FakeEngine, kind: str, version: str | None, models: tuple[str, ...], window: int | None
) -> None:
    finding = asyncio.run(probe(engine, "auto"))
    assert (finding.kind, finding.version, finding.models, finding.window) == (kind, version, models, window)
    assert finding.ready


def test_a_web_server_is_no_engine() -> None:
    """Unless the operator says that it is one, which lists no models."""
    nothing = FakeEngine({"/v1/models": reply({"detail": "Not Found"}, 404)})
    assert not asyncio.run(probe(nothing, "auto")).ready
    assert asyncio.run(probe(nothing, "openai")).ready


def test_an_engine_with_a_key_serves_whoever_has_one() -> None:
    finding = asyncio.run(probe(KEYED, "auto"))
    assert finding.ready
    assert finding.asks_for_key


def test_a_configured_kind_is_believed() -> None:
    assert asyncio.run(probe(OTHER, "sglang")).kind == "sglang"


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"null", b'{"data":7}', b'{"data":[1,{"id":5},{"id":""}]}', b'{"data":[{}]}'],
)
def test_probe_bears_any_answer(body: bytes) -> None:
    engine = FakeEngine({"/v1/models": reply(None)})
    engine.answers["/v1/models"].body = body  # type: ignore[union-attr]
    assert asyncio.run(probe(engine, "auto")).models == ()


def test_an_engine_that_loads_is_not_ready() -> None:
    loading = FakeEngine(
        {"/v1/models": reply({"error": {"message": "Loading model"}}, 503, server="llama.cpp")}
    )
    finding = asyncio.run(probe(loading, "auto"))
    assert (finding.kind, finding.ready) == ("llamacpp", False)


def test_every_kind_of_the_settings_has_its_engine() -> None:
    assert {"auto", *ENGINES} == set(EngineKind.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("abc", "abd", 2), ("abc", "abc", None), ("abc", "ab", 2), ("", "a", 0), ((1, 2), (1, 3), 1)],
)
def test_first_difference(
    one: str | tuple[int, ...], other: str | tuple[int, ...], expected: int | None
) -> None:
    assert first_difference(one, other) == expected


TEMPLATES: list[tuple[FakeTemplate, bool, str, bool]] = [
    (in_place, True, "tools-first", False),
    (hoisting, False, "system-first", False),
    (sinking, False, "tools-first", False),
    (dropping, False, "tools-first", False),
    (refusing, False, "tools-first", False),
    (stripping, True, "tools-first", True),
]


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
@pytest.mark.parametrize(("template", "late_in_place", "order", "strips"), TEMPLATES)
def test_what_a_template_does_is_found_by_asking(
    kind: str, template: FakeTemplate, late_in_place: bool, order: str, strips: bool
) -> None:
    asked = (
        Template(Vllm(), vllm(template), "tiny")
        if kind == "vllm"
        else Template(LlamaCpp(), llamacpp(template), "m.gguf")
    )
    assert asyncio.run(asked.prints_late_system_in_place()) is late_in_place
    assert asyncio.run(asked.order()) == order
    assert asyncio.run(asked.strips_billing_header()) is strips


def test_an_engine_that_does_not_render_tells_nothing() -> None:
    asked = Template(Engine(), OTHER, "gpt")
    assert asyncio.run(asked.prints_late_system_in_place()) is None
    assert asyncio.run(asked.order()) is None
    assert asyncio.run(asked.strips_billing_header()) is None


class Core:
    """Records what the core is told."""

    def __init__(self) -> None:
        self.updates: list[tuple[str | None, list[str], str | None]] = []
        self.orders: list[str | None] = []

    def update(
        self,
        *,
        engine: str | None = None,
        models: Sequence[str] | None = None,
        late_system: str | None = None,
        template_order: str | None = None,
    ) -> None:
        self.updates.append((engine, list(models or ()), late_system))
        self.orders.append(template_order)


class Watched:
    """A watch with everything around it."""

    def __init__(self, engine: FakeEngine, **names: str) -> None:
        settings = Settings.from_env({f"FOREWORD_{name}": value for name, value in names.items()})
        self.now = 100.0
        self.core = Core()
        self.state = EngineState(kind=settings.engine, clock=lambda: self.now)
        self.watch = Watch(settings, engine, self.core, self.state)

    def once(self) -> bool:
        return asyncio.run(self.watch.once())


@pytest.mark.parametrize(
    ("engine", "late_system"),
    [
        (vllm(in_place), "system"),
        (vllm(hoisting), "tool"),
        (vllm(refusing), "tool"),
        (STRATA, "system"),
        (SGLANG, "tool"),
        (OTHER, "tool"),
        (llamacpp(in_place), "system"),
        (llamacpp(sinking), "tool"),
        (KEYED, "tool"),
    ],
)
def test_rule_2_is_decided_by_the_template(engine: FakeEngine, late_system: str) -> None:
    watched = Watched(engine)
    assert watched.once()
    assert [update[2] for update in watched.core.updates] == [late_system]
    assert watched.state.late_system == late_system


def test_the_order_of_the_template_is_learnt() -> None:
    for engine, order in ((vllm(in_place), "tools-first"), (STRATA, None), (KEYED, None)):
        watched = Watched(engine)
        assert watched.once()
        assert watched.core.orders == [order]
    watched = Watched(vllm(in_place), TEMPLATE_ORDER="system-first")
    assert watched.once()
    assert watched.core.orders == [None], "set by hand"


def test_rule_2_set_by_hand_is_left_alone() -> None:
    engine = vllm(in_place)
    watched = Watched(engine, RULE_LATE_SYSTEM="user", TEMPLATE_ORDER="tools-first")
    assert watched.once()
    assert watched.core.updates == [("vllm", ["tiny"], None)]
    assert "POST /tokenize" not in engine.asked


def test_an_absent_engine_is_asked_again_and_a_changed_one_picked_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = vllm(in_place)
    engine.away = True
    watched = Watched(engine)
    assert not watched.once()
    assert not watched.once()
    assert len(caplog.records) == 1, "said once, not at each probe"
    assert (watched.state.reachable, watched.state.last_seen_seconds()) == (False, None)

    engine.away = False
    assert watched.once()
    assert watched.once()
    assert watched.core.updates == [("vllm", ["tiny"], "system")], "told once, while nothing changes"

    engine.away = True
    watched.now += 7
    assert not watched.once()
    assert (watched.state.reachable, watched.state.last_seen_seconds()) == (False, 7)

    engine.away = False
    engine.answers = vllm(hoisting, model="other").answers
    assert watched.once()
    assert watched.core.updates[1:] == [("vllm", ["other"], "tool")]


def test_the_same_model_after_a_restart_is_asked_for_its_template_again() -> None:
    engine = vllm(in_place)
    watched = Watched(engine)
    watched.once()
    engine.away = True
    watched.once()
    engine.away = False
    engine.answers = vllm(hoisting).answers
    watched.once()
    assert [update[2] for update in watched.core.updates] == ["system", "tool"]


def test_a_probe_that_fails_in_an_unforeseen_way_is_no_end() -> None:
    engine = vllm(in_place)

    def boom(_: object) -> object:
        raise RuntimeError("never seen before")

    engine.answers["/v1/models"] = boom  # type: ignore[assignment]
    watched = Watched(engine)
    assert not watched.once()
    assert not watched.state.reachable


def test_the_watch_asks_fast_while_the_engine_is_away_and_slowly_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = vllm(in_place)
    engine.away = True
    watched = Watched(engine)
    pauses: list[float] = []

    async def pause(_: Watch, seconds: float) -> None:
        pauses.append(seconds)
        engine.away = False
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(Watch, "_pause", pause)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watched.watch.run())
    assert pauses == [watch_module.UNREACHABLE_SECONDS, *[watch_module.REACHABLE_SECONDS] * 2]


def test_doubt_shortens_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "UNREACHABLE_SECONDS", 0.01)
    engine = vllm(in_place)
    watched = Watched(engine)

    async def run() -> None:
        task = asyncio.create_task(watched.watch.run())
        await asyncio.sleep(0.05)
        asked = len(engine.asked)
        watched.watch.doubt()
        await asyncio.sleep(0.1)
        assert len(engine.asked) > asked
        asked = len(engine.asked)
        watched.watch.doubt(restarted=True)
        await asyncio.sleep(0.1)
        assert "POST /tokenize" in engine.asked[asked:], "after a restart the template is asked for again"
        task.cancel()

    asyncio.run(run())


def test_an_engine_that_hangs_costs_a_time_out() -> None:
    async def hanging(method: str, path: str, body: bytes | None) -> Reply:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(FetchError, match=r"^no answer within 0.05 s$"):
        asyncio.run(through(hanging, 0.05)("GET", "/metrics"))


def test_through_the_gateway_a_502_means_nobody_is_there() -> None:
    answers = {
        "/a": reply({"error": {"message": "connection refused"}}, 502),
        "/b": reply([], 502),
        "/c": reply({"ok": True}),
    }
    fetch = through(FakeEngine(answers))
    with pytest.raises(FetchError, match=r"^connection refused$"):
        asyncio.run(fetch("GET", "/a"))
    with pytest.raises(FetchError, match=r"^status 502$"):
        asyncio.run(fetch("GET", "/b"))
    assert orjson.loads(asyncio.run(fetch("GET", "/c")).body) == {"ok": True}

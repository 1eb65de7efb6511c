"""One round of questions to the engine: its kind, version and models."""

from dataclasses import dataclass

from foreword.engines.base import Answer, Engine, Fetch, Json, as_object, count_of, header, text_of
from foreword.engines.llamacpp import LlamaCpp
from foreword.engines.sglang import Sglang
from foreword.engines.strata import Strata
from foreword.engines.vllm import Vllm
from foreword.settings import EngineKind

ENGINES: dict[EngineKind, Engine] = {
    engine.kind: engine for engine in (Vllm(), Strata(), Sglang(), LlamaCpp(), Engine())
}


def engine_of(kind: str) -> Engine | None:
    """What is known of the kind; None while it is not found out."""
    return next((engine for known, engine in ENGINES.items() if known == kind), None)


# By `owned_by` of a listed model.
_OWNERS: dict[str, EngineKind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}

# Path, a member of what it answers, and the engine that answers so.
_OWN_ENDPOINTS: tuple[tuple[str, str, EngineKind], ...] = (
    ("/get_server_info", "version", "sglang"),
    ("/props", "default_generation_settings", "llamacpp"),
    ("/version", "version", "vllm"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one round found out."""

    kind: EngineKind
    version: str | None
    models: tuple[str, ...]
    window: int | None
    """The context window in tokens."""
    asks_for_key: bool
    """Whether it told nothing for want of a key."""
    ready: bool
    """False while the engine answers but does not serve (it loads its model)."""


async def probe(fetch: Fetch, configured: EngineKind) -> Finding:
    """Asks the engine. Raises FetchError when it cannot be reached.

    A configured kind is believed; only ``auto`` asks for it.
    """
    answer = await fetch("GET", "/v1/models")
    listed = _models(answer)
    kind = await _kind(fetch, answer, listed) if configured == "auto" else configured
    about = await ENGINES[kind].about(fetch)
    return Finding(
        kind=kind,
        version=about.version,
        models=tuple(name for model in listed if (name := text_of(model.get("id")))),
        window=_window(listed) or about.window,
        asks_for_key=answer.status in (401, 403),
        # Not ready: it loads its model (503), or is no engine at all (404, unless we were told so). One that asks for a
        # key serves whoever has one.
        ready=answer.status < 400
        or answer.status in (401, 403)
        or (answer.status == 404 and configured != "auto"),
    )


async def _kind(fetch: Fetch, answer: Answer, listed: list[Json]) -> EngineKind:
    health = as_object(await fetch("GET", "/health"))
    if health is not None and health.get("service") == "strata":
        return "strata"
    if "llama.cpp" in header(answer, b"server").lower():
        return "llamacpp"
    for model in listed:
        if owner := _OWNERS.get(str(model.get("owned_by")).lower()):
            return owner
    # The models say nothing (none is loaded, or a key is asked for): each engine has an endpoint of its own.
    for path, mark, kind in _OWN_ENDPOINTS:
        found = as_object(await fetch("GET", path))
        if found is not None and mark in found:
            return kind
    return "openai"


def _models(answer: Answer) -> list[Json]:
    listing = as_object(answer)
    data = listing.get("data") if listing else None
    return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []


def _window(listed: list[Json]) -> int | None:
    return next((window for model in listed if (window := count_of(model.get("max_model_len")))), None)

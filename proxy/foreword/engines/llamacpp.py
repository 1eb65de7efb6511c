"""llama.cpp's server: /props, and /apply-template for the rendered text."""

from collections.abc import Sequence
from typing import ClassVar

from foreword.engines.base import About, Engine, Fetch, Json, Message, count_of, get_json, post_json, text_of
from foreword.engines.llamacpp_log import LlamaCppLog
from foreword.engines.reading import CounterAt, Expected, GaugeAt, Reading, Table, read
from foreword.settings import EngineKind

_RUNNING = ("llamacpp_requests_processing",)
_WAITING = ("llamacpp_requests_deferred",)
_READ = ("llamacpp_prompt_tokens",)

# It counts the prompt tokens that it read, not those that it reused: there is no hit rate in these metrics.
METRICS = Table(
    counters=(
        CounterAt("prompt_tokens", _READ),
        CounterAt("generated_tokens", ("llamacpp_tokens_predicted",)),
    ),
    gauges=(
        GaugeAt("running", _RUNNING),
        GaugeAt("waiting", _WAITING),
        GaugeAt("l1_usage", ("llamacpp_kv_cache_usage_ratio",), most=True),
    ),
    expected=(Expected(_RUNNING, "the queue"), Expected(_WAITING, "the queue"), Expected(_READ, "the load")),
)


class LlamaCpp(Engine):
    """llama-server."""

    kind: ClassVar[EngineKind] = "llamacpp"

    async def about(self, fetch: Fetch) -> About:
        props = await get_json(fetch, "/props")
        if props is None:
            return About()
        defaults = props.get("default_generation_settings")
        window = count_of(defaults.get("n_ctx")) if isinstance(defaults, dict) else None
        return About(text_of(props.get("build_info")), window)

    async def render(
        self, fetch: Fetch, model: str, messages: Sequence[Message], tools: Sequence[Json]
    ) -> str | None:
        question = {"model": model, "messages": messages, **({"tools": tools} if tools else {})}
        answer = await post_json(fetch, "/apply-template", question)
        return text_of(answer.get("prompt")) if answer else None

    metrics_path: ClassVar[str] = "/metrics"
    metrics_flag: ClassVar[str] = "--metrics"

    def read_metrics(self, body: bytes) -> Reading:
        return read(METRICS, body)

    def log_reader(self) -> LlamaCppLog:
        return LlamaCppLog()

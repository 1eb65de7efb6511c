"""SGLang: /get_server_info."""

from typing import ClassVar

from foreword.engines.base import About, Engine, Fetch, count_of, get_json, text_of
from foreword.engines.reading import CounterAt, Expected, GaugeAt, Reading, Table, read
from foreword.settings import EngineKind

_RUNNING = ("sglang_num_running_reqs",)
_WAITING = ("sglang_num_queue_reqs",)
_PROMPT = ("sglang_prompt_tokens",)
_CACHED = ("sglang_cached_tokens",)

# sglang:cache_hit_rate is not read: it is of the last batch, and was seen at 0 beside millions of cached tokens.
METRICS = Table(
    counters=(
        CounterAt("requests", ("sglang_num_requests",)),
        CounterAt("prompt_tokens", _PROMPT),
        CounterAt("generated_tokens", ("sglang_generation_tokens",)),
        CounterAt("cached_tokens", _CACHED),
        # Its radix cache is asked for every prompt.
        CounterAt("l1_queried_tokens", _PROMPT),
        CounterAt("l1_hit_tokens", _CACHED),
        CounterAt("l2_hit_tokens", _CACHED, {"cache_source": "host"}),
        CounterAt("preemptions", ("sglang_num_retracted_requests",)),
    ),
    gauges=(
        GaugeAt("running", _RUNNING),
        GaugeAt("waiting", _WAITING),
        GaugeAt("l1_usage", ("sglang_token_usage",), most=True),
        GaugeAt("l1_tokens", ("sglang_max_total_num_tokens",), most=True),
        GaugeAt("block_tokens", ("sglang_cache_config_info",), label="page_size", most=True),
    ),
    expected=(
        Expected(_RUNNING, "the queue"),
        Expected(_WAITING, "the queue"),
        Expected(_PROMPT, "the load"),
        Expected(_CACHED, "the hit rate of the prefix cache"),
    ),
    started=("process_start_time_seconds", "sglang_prompt_tokens_created"),
)


class Sglang(Engine):
    """SGLang's server; its OpenAI endpoints do not tell the rendered prompt."""

    kind: ClassVar[EngineKind] = "sglang"
    cached_tokens_advice: ClassVar[str] = "start SGLang with --enable-cache-report"

    async def about(self, fetch: Fetch) -> About:
        info = await get_json(fetch, "/get_server_info")
        return About(text_of(info.get("version")), count_of(info.get("context_length"))) if info else About()

    metrics_path: ClassVar[str] = "/metrics"
    metrics_flag: ClassVar[str] = "--enable-metrics"

    def read_metrics(self, body: bytes) -> Reading:
        return read(METRICS, body)

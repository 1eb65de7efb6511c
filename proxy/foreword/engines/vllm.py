"""vLLM: /version, and /tokenize with messages."""

from collections.abc import Sequence
from typing import ClassVar

from foreword.engines.base import About, Engine, Fetch, Json, Message, get_json, post_json, text_of
from foreword.engines.reading import CounterAt, Expected, GaugeAt, Reading, Table, read
from foreword.settings import EngineKind

_L1_QUERIES = ("vllm_prefix_cache_queries", "vllm_gpu_prefix_cache_queries")
_L1_HITS = ("vllm_prefix_cache_hits", "vllm_gpu_prefix_cache_hits")
_L2_QUERIES = ("vllm_external_prefix_cache_queries", "vllm_connector_prefix_cache_queries")
_L2_HITS = ("vllm_external_prefix_cache_hits", "vllm_connector_prefix_cache_hits")
_RUNNING = ("vllm_num_requests_running",)
_WAITING = ("vllm_num_requests_waiting",)
_PROMPT = ("vllm_prompt_tokens",)
_CONFIG = ("vllm_cache_config_info",)
_GIB = float(1 << 30)

# In older versions the two directions of a transfer were labels of one family.
_OLD_TRANSFERS = ("vllm_kv_offload_total_bytes",)
METRICS = Table(
    counters=(
        CounterAt("requests", ("vllm_request_success",)),
        CounterAt("prompt_tokens", _PROMPT),
        CounterAt("generated_tokens", ("vllm_generation_tokens",)),
        CounterAt("cached_tokens", ("vllm_prompt_tokens_cached",)),
        CounterAt("l1_queried_tokens", _L1_QUERIES),
        CounterAt("l1_hit_tokens", _L1_HITS),
        CounterAt("l2_queried_tokens", _L2_QUERIES),
        CounterAt("l2_hit_tokens", _L2_HITS),
        CounterAt("l2_stored_bytes", _OLD_TRANSFERS, {"transfer_type": "GPU_to_CPU"}),
        CounterAt("l2_loaded_bytes", _OLD_TRANSFERS, {"transfer_type": "CPU_to_GPU"}),
        CounterAt("l2_stored_bytes", ("vllm_kv_offload_store_bytes",)),
        CounterAt("l2_loaded_bytes", ("vllm_kv_offload_load_bytes",)),
        CounterAt("l2_stored_blocks", ("vllm_simple_kv_offload_save_outcomes",), {"outcome": "stored"}),
        CounterAt("l2_loaded_blocks", ("vllm_simple_kv_offload_load_blocks",)),
        CounterAt(
            "l2_allocation_failures",
            ("vllm_kv_offload_allocation_failure", "vllm_kv_offload_allocation_failures"),
        ),
        CounterAt("l2_stores_skipped", ("vllm_kv_offload_stores_skipped",)),
        CounterAt("preemptions", ("vllm_num_preemptions",)),
    ),
    gauges=(
        GaugeAt("running", _RUNNING),
        GaugeAt("waiting", _WAITING),
        GaugeAt("l1_usage", ("vllm_kv_cache_usage_perc", "vllm_gpu_cache_usage_perc"), most=True),
        GaugeAt("l1_tokens", _CONFIG, label="kv_cache_size_tokens"),
        GaugeAt("block_tokens", _CONFIG, label="block_size", most=True),
        GaugeAt("prefix_caching", _CONFIG, label="enable_prefix_caching", most=True),
        GaugeAt("l2_bytes", _CONFIG, label="kv_offloading_size", most=True, scale=_GIB),
        GaugeAt("l2_bytes", ("vllm_kv_offload_cpu_cache_capacity_bytes",)),
        GaugeAt("l2_pinned", ("vllm_kv_offload_cpu_cache_usage_perc",), most=True),
    ),
    expected=(
        Expected(_RUNNING, "the queue"),
        Expected(_WAITING, "the queue"),
        Expected(_PROMPT, "the load"),
        Expected(_L1_QUERIES, "the hit rate of the prefix cache"),
        Expected(_L1_HITS, "the hit rate of the prefix cache"),
        Expected(_L2_QUERIES, "whether a second cache level is read"),
        Expected(_L2_HITS, "whether a second cache level is read"),
        Expected(_CONFIG, "the block size"),
    ),
    started=("process_start_time_seconds", "vllm_prompt_tokens_created"),
)


class Vllm(Engine):
    """vLLM's OpenAI-compatible server."""

    kind: ClassVar[EngineKind] = "vllm"
    cached_tokens_advice: ClassVar[str] = "start vLLM with --enable-prompt-tokens-details"

    async def about(self, fetch: Fetch) -> About:
        answer = await get_json(fetch, "/version")
        return About(text_of(answer.get("version"))) if answer else About()

    async def render(
        self, fetch: Fetch, model: str, messages: Sequence[Message], tools: Sequence[Json]
    ) -> tuple[int, ...] | None:
        question = {"model": model, "messages": messages, **({"tools": tools} if tools else {})}
        answer = await post_json(fetch, "/tokenize", question)
        tokens = answer.get("tokens") if answer else None
        if isinstance(tokens, list) and tokens and all(isinstance(token, int) for token in tokens):
            return tuple(tokens)
        return None

    metrics_path: ClassVar[str] = "/metrics"

    def read_metrics(self, body: bytes) -> Reading:
        return read(METRICS, body)

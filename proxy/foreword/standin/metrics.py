"""The stand-in's /metrics: those of vLLM's names that say something of the queue, the cache and the requests."""

import time
from collections.abc import Iterable

from .engine import Engine

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
_STARTED = time.time()

_COUNTERS = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    ("external_prefix_cache_queries", "Prompt tokens looked up in a KV connector."),
    ("external_prefix_cache_hits", "Prompt tokens found in a KV connector."),
    ("prompt_tokens", "Prompt tokens of requests whose prompt was read."),
    ("prompt_tokens_cached", "Those of them that came from a cache."),
    ("generation_tokens", "Tokens generated."),
)


def exposition(engine: Engine) -> bytes:
    """Prometheus text."""
    model = engine.options.model.replace("\\", "\\\\").replace('"', '\\"')
    labels = f'engine="0",model_name="{model}"'
    totals = engine.totals
    second = engine.blocks.second if engine.blocks is not None else None
    if second is not None:
        totals["external_prefix_cache_queries"] = second.queries
        totals["external_prefix_cache_hits"] = second.hits
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> None:
        lines.append(f"# HELP vllm:{name} {text}")
        lines.append(f"# TYPE vllm:{name} {kind}")
        lines.extend(f"vllm:{name}{{{labelled}}} {float(value)}" for labelled, value in samples)

    def counter(name: str, text: str, samples: list[tuple[str, float]]) -> None:
        family(f"{name}_total", "counter", text, samples)
        family(f"{name}_created", "gauge", text, [(labelled, _STARTED) for labelled, _ in samples])

    family("num_requests_running", "gauge", "Requests being read or answered.", [(labels, engine.running)])
    family("num_requests_waiting", "gauge", "Requests in the queue.", [(labels, engine.waiting)])
    for name, text in _COUNTERS:
        counter(name, text, [(labels, totals[name])])
    loaded = totals["prompt_tokens_loaded"]
    sources = {
        "local_compute": totals["prompt_tokens"] - totals["prompt_tokens_cached"],
        "local_cache_hit": totals["prompt_tokens_cached"] - loaded,
        "external_kv_transfer": loaded,
    }
    counter(
        "prompt_tokens_by_source",
        "Where prompt tokens came from.",
        [(f'{labels},source="{source}"', count) for source, count in sources.items()],
    )
    counter(
        "request_success",
        "Requests that ended, by the reason.",
        [
            (f'engine="0",finished_reason="{reason}",model_name="{model}"', count)
            for reason, count in engine.finished.items()
        ],
    )
    if second is not None:
        counter(
            "prompt_tokens_cached_by_source",
            "Cached prompt tokens by where they lay.",
            [
                (f'{labels},source="device"', totals["prompt_tokens_cached"] - loaded),
                (f'{labels},source="host"', loaded),
            ],
        )
        counter("kv_offload_store_bytes", "Bytes copied to the host.", [(labels, second.store_bytes)])
        counter("kv_offload_load_bytes", "Bytes copied back.", [(labels, second.load_bytes)])
        counter(
            "kv_offload_allocation_failure",
            "Stores for which there was no room.",
            [(labels, second.allocation_failures)],
        )
        counter(
            "kv_offload_total_bytes",
            "Deprecated: bytes by direction.",
            [
                (f'{labels},transfer_type="GPU_to_CPU"', second.store_bytes),
                (f'{labels},transfer_type="CPU_to_GPU"', second.load_bytes),
            ],
        )
        family(
            "kv_offload_cpu_cache_usage_perc",
            "gauge",
            "Share of the pool that transfers under way pin.",
            [(labels, second.pinned_share)],
        )
    info = f'block_size="{engine.options.block_tokens}",enable_prefix_caching="True",engine="0"'
    blocks = f'{info},num_gpu_blocks="{engine.options.cache_blocks}"'
    family("cache_config_info", "gauge", "The prefix cache's settings.", [(blocks, 1)])
    return "\n".join(lines).encode() + b"\n"

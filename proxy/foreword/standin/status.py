"""Strata's /metrics: JSON, or Prometheus text where that is asked for. Neither has a count of evictions."""

from typing import Any

from .conversations import Conversations
from .engine import Engine

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def status(engine: Engine, conversations: Conversations) -> dict[str, Any]:
    """The JSON form."""
    totals, options = engine.totals, engine.options
    decoded = engine.seconds["decode"]
    last = engine.recent[-1]["prompt_tokens"] if engine.recent else 0
    return {
        "live": {
            "state": "busy" if engine.running else "idle",
            "prompt_tokens": engine.reading_tokens,
            "generated": totals["generation_tokens"],
            "queued": engine.waiting,
            "waiting": engine.waiting,
            "running": engine.running,
            "tok_s": round(totals["generation_tokens"] / decoded, 1) if decoded else 0.0,
        },
        "totals": {
            "requests": sum(engine.finished.values()),
            "prompt_tokens": totals["prompt_tokens"],
            "reused": totals["prompt_tokens_cached"],
            "output_tokens": totals["generation_tokens"],
            "prompt_ms": round(engine.seconds["prompt"] * 1000, 1),
            "decode_ms": round(decoded * 1000, 1),
        },
        "requests": list(engine.recent),
        "conversation_cache": {
            "enabled": conversations.budget > 0,
            "budget_mib": conversations.budget // 2**20,
            "slots": options.conversation_cache_slots,
            "parked": conversations.parked,
            "bytes": conversations.parked_bytes,
            "parks": conversations.parks,
            "restores": conversations.restores,
            "last_event": conversations.last_event,
            "last_tokens": conversations.last_tokens,
            "requests": sum(engine.finished.values()),
            "last_prompt": last,
        },
    }


def exposition(engine: Engine, conversations: Conversations) -> bytes:
    """Prometheus text: vLLM's names for what vLLM has, and Strata's own for the rest."""
    totals = engine.totals
    rows: list[tuple[str, str, float]] = [
        ("vllm:num_requests_running", "gauge", engine.running),
        ("vllm:num_requests_waiting", "gauge", engine.waiting),
        ("vllm:prefix_cache_queries_total", "counter", totals["prompt_tokens"]),
        ("vllm:prefix_cache_hits_total", "counter", totals["prompt_tokens_cached"]),
        ("vllm:prompt_tokens_total", "counter", totals["prompt_tokens"]),
        ("vllm:generation_tokens_total", "counter", totals["generation_tokens"]),
        ("strata:conversation_cache_budget_bytes", "gauge", conversations.budget),
        ("strata:conversation_cache_bytes", "gauge", conversations.parked_bytes),
        ("strata:conversation_cache_parked", "gauge", conversations.parked),
        ("strata:conversation_cache_parks_total", "counter", conversations.parks),
        ("strata:conversation_cache_restores_total", "counter", conversations.restores),
    ]
    lines = []
    for name, kind, value in rows:
        lines += [f"# TYPE {name} {kind}", f"{name} {float(value)}"]
    return "\n".join(lines).encode() + b"\n"

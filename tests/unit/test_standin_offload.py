"""The stand-in's second level: the counters of an offload that is healthy, write-only or too small."""

import re
import time
from typing import Any

import pytest
from tests.unit.standin_app import call, standin

from foreword.standin import Standin
from foreword.standin.offload import TOKEN_BYTES

BLOCK = 32


def metric(app: Standin, name: str, **labels: str) -> float:
    text = call(app, "/metrics", method="GET").body.decode()
    chosen = "".join(f'(?=.*{label}="{value}")' for label, value in labels.items())
    (value,) = re.findall(rf"^vllm:{name}\{{{chosen}.*\}} (\S+)$", text, re.MULTILINE)
    return float(value)


def ask(app: Standin, name: str, blocks: int = 10) -> int:
    asked = {"messages": [{"role": "user", "content": name * 4 * BLOCK * blocks}], "max_tokens": 1}
    usage = call(app, "/v1/chat/completions", asked).json()["usage"]
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached


def round_of(app: Standin, names: str) -> list[int]:
    return [ask(app, name) for name in names]


def engine(l2: str, **options: Any) -> Standin:
    return standin(block_tokens=BLOCK, cache_blocks=20, l2=l2, **options)


def test_a_healthy_one_loads_what_the_first_level_lost() -> None:
    app = engine("healthy")
    assert round_of(app, "abcd") == [0, 0, 0, 0]
    # Twenty blocks hold two prompts; the other two come from the host.
    assert round_of(app, "abcd") == [320] * 4
    assert metric(app, "prefix_cache_hits_total") == 0
    assert metric(app, "external_prefix_cache_hits_total") == 4 * 320
    prompt = metric(app, "prompt_tokens_total") / 8
    assert metric(app, "external_prefix_cache_queries_total") == 8 * prompt
    assert metric(app, "kv_offload_store_bytes_total") == 4 * 320 * TOKEN_BYTES
    assert metric(app, "kv_offload_load_bytes_total") == 4 * 320 * TOKEN_BYTES
    assert metric(app, "prompt_tokens_by_source_total", source="external_kv_transfer") == 4 * 320
    assert metric(app, "prompt_tokens_cached_by_source_total", source="host") == 4 * 320
    # What the first level answers is not asked for.
    assert ask(app, "d") == 320
    assert metric(app, "external_prefix_cache_queries_total") == 8 * prompt + prompt - 320


def test_a_write_only_one_stores_and_never_loads_and_its_gauge_misleads() -> None:
    app = engine("write-only", l2_blocks=100)
    for _ in range(3):
        assert round_of(app, "abcd") == [0] * 4
    assert metric(app, "kv_offload_store_bytes_total") == 4 * 320 * TOKEN_BYTES
    assert metric(app, "kv_offload_load_bytes_total") == 0
    assert metric(app, "external_prefix_cache_hits_total") == 0
    assert metric(app, "external_prefix_cache_queries_total") == metric(app, "prompt_tokens_total")
    # It reads like an occupancy while writes are under way, and is 0 when they are over, though the pool is full.
    ask(app, "e", blocks=500)
    assert metric(app, "kv_offload_cpu_cache_usage_perc") > 0
    time.sleep(0.4)
    assert metric(app, "kv_offload_cpu_cache_usage_perc") == 0


def test_one_that_is_too_small_loads_only_what_comes_back_soon() -> None:
    app = engine("too-small")
    # 25 blocks: of three prompts in turn the second level has kept the head of the oldest, and nothing more.
    assert [round_of(app, "abc") for _ in range(3)] == [[0] * 3, [160] * 3, [160] * 3]
    assert metric(app, "kv_offload_load_bytes_total") == 6 * 160 * TOKEN_BYTES
    # A pool no larger than the first level is always asked for what it has just lost.
    app = engine("too-small", l2_blocks=20)
    assert [round_of(app, "abc") for _ in range(3)] == [[0] * 3] * 3
    assert metric(app, "kv_offload_load_bytes_total") == 0
    assert metric(app, "kv_offload_store_bytes_total") == 9 * 320 * TOKEN_BYTES
    # A prompt for which there is no room at all is a failure, and what fits of it is stored.
    ask(app, "d", blocks=21)
    assert metric(app, "kv_offload_allocation_failure_total") > 0
    assert metric(app, "kv_offload_store_bytes_total") == (9 * 320 + 640) * TOKEN_BYTES


@pytest.mark.parametrize("name", ["kv_offload_store_bytes", "kv_offload_cpu_cache_usage_perc"])
def test_without_an_offload_its_families_are_not_there(name: str) -> None:
    assert name not in call(standin(), "/metrics", method="GET").body.decode()

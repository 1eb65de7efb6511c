"""A second level behind vLLM's prefix cache: blocks in host memory, in three states of health.

*healthy* stores what is read and loads what the first level has lost. *write-only* stores and is never asked: the
incident in which eleven days of writes were not read once. *too-small* is healthy in a pool that little outlasts the
first level, so that loads are rare. The counters are those of vLLM's offloading connector.
"""

import time
from typing import Final

from foreword._core import BlockCache

from . import tokens
from .options import Options

TOKEN_BYTES: Final = 131_072
"""KV cache of one token."""
_TRANSFER_RATE: Final = 8 * 2**30
"""Bytes copied to or from the host in a second."""
_DEFAULT_SHARE: Final = {"healthy": 8.0, "write-only": 8.0, "too-small": 1.25}
"""Blocks of the pool for one of the first level, where none are told."""


class Offload:
    """The pool and its counters; tokens and bytes."""

    def __init__(self, options: Options) -> None:
        blocks = options.l2_blocks or int(options.cache_blocks * _DEFAULT_SHARE[options.l2 or "healthy"])
        self._blocks = blocks
        self._block_tokens = options.block_tokens
        self._reads = options.l2 != "write-only"
        self._pool = BlockCache(options.block_tokens, blocks)
        self._busy_until = 0.0
        self.queries = 0
        self.hits = 0
        self.store_bytes = 0
        self.load_bytes = 0
        self.allocation_failures = 0

    def load(self, prompt: bytes, found: int, salt: bytes) -> int:
        """Tokens that follow the ``found`` first ones and came from the pool. Only local misses are asked for."""
        self.queries += tokens.count(prompt) - found
        if not self._reads:
            return 0
        loaded = max(0, self._pool.lookup(prompt, salt) - found)
        if loaded:
            self.hits += loaded
            self.load_bytes += self._transfer(loaded)
        return loaded

    def store(self, prompt: bytes, upto: int, salt: bytes) -> None:
        """Stores the whole blocks of the first ``upto`` tokens that the pool does not hold."""
        whole = min(upto, tokens.count(prompt)) // self._block_tokens * self._block_tokens
        # One token more, because a lookup never answers the last one.
        held = self._pool.lookup(prompt[: whole * tokens.WIDTH] + b"\0" * tokens.WIDTH, salt)
        if whole > held:
            self._pool.insert(prompt, whole, salt)
            stored = max(0, min(whole, self._blocks * self._block_tokens) - held)
            self.store_bytes += self._transfer(stored)
            self.allocation_failures += stored < whole - held

    @property
    def pinned_share(self) -> float:
        """``kv_offload_cpu_cache_usage_perc``: what transfers under way pin, which is no occupancy and falls to 0."""
        left = max(0.0, self._busy_until - time.monotonic()) * _TRANSFER_RATE
        return min(1.0, left / (self._blocks * self._block_tokens * TOKEN_BYTES))

    def _transfer(self, count: int) -> int:
        size = count * TOKEN_BYTES
        self._busy_until = max(self._busy_until, time.monotonic()) + size / _TRANSFER_RATE
        return size

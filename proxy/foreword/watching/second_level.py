"""Findings on the second cache level (L2): written and never read, too small, or not told apart yet.

Two counters decide whether it is read: bytes loaded, and hits of external queries. The usage gauge does not: it shows
the share that running transfers pin, and falls to 0 whenever they end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foreword.engines.reading import Counter, Gauge
from foreword.findings import Board, Finding
from foreword.watching.meter import WINDOW_SECONDS
from foreword.watching.reuse import Reuse

_WRITTEN: tuple[Counter, ...] = ("l2_stored_bytes", "l2_stored_blocks")
_READ: tuple[Counter, ...] = ("l2_loaded_bytes", "l2_loaded_blocks", "l2_hit_tokens")

SUBJECT = "engine"
IDS = ("l2-write-only", "l2-too-small", "l2-undecided")

SOME_ROUNDS = 5
SOME_TOKENS = 50_000
SOME_RETURNS = 3
"""From so many readings with misses and missed tokens on, or so many lost returns, there is something to say ..."""
SURE_ROUNDS = 12
SURE_TOKENS = 2_000_000
SURE_SECONDS = 1800.0
SURE_RETURNS = 12
"""... and from so many on it is said for sure: a pool that is only too small finds the nearest of them."""
WITNESSES = 20
"""Continued conversations none of which lost anything show that L1 answered all that could be reused."""
HEALTHY_SHARE = 0.1
"""Hits of external queries, or bytes loaded over bytes stored: from here on the pool earns its keep."""
SPARSE_SHARE = 0.02
"""Below it loads happen now and then."""
CROWDED_SHARE = 0.5
"""Failed allocations for each reading with misses."""
FITS = 0.5
"""A distance below this share of the pool fits for sure: blocks of several sizes share the pool."""

GAUGE = (
    "kv_offload_cpu_cache_usage_perc is no sign of an empty pool: it is the share pinned by running transfers, and is 0"
    " whenever none run."
)
CRITERIA = "it is read when vllm:kv_offload_load_bytes grows and vllm:external_prefix_cache_hits grows"
REPAIRED = (
    "bytes loaded grow; a long prefix that was just pushed out of the GPU is an external hit; long"
    " conversations with 0 cached tokens become rare"
)


@dataclass(slots=True)
class _Evidence:
    """What was seen since the level was last empty, or since it was last found to be read."""

    begun: float
    ended: float
    read_before: bool
    """Whether this run of the engine was seen to read it earlier."""
    grown: dict[Counter, float] = field(default_factory=dict)
    rounds: int = 0
    """Readings in which L1 missed, once there was something stored."""
    loading_rounds: int = 0

    def of(self, word: Counter) -> float:
        return self.grown.get(word, 0.0)

    @property
    def stored(self) -> float:
        return self.of("l2_stored_bytes") or self.of("l2_stored_blocks")

    @property
    def loaded(self) -> float:
        return self.of("l2_loaded_bytes") or self.of("l2_loaded_blocks")

    @property
    def queried(self) -> float:
        """Tokens that L1 did not have."""
        if "l2_queried_tokens" in self.grown:
            return self.of("l2_queried_tokens")
        return max(0.0, self.of("l1_queried_tokens") - self.of("l1_hit_tokens"))

    @property
    def missed(self) -> float:
        return max(0.0, self.queried - self.of("l2_hit_tokens"))

    @property
    def crowded(self) -> bool:
        """Whether stores find no room all the time: then there is less of the pool than of one step's work."""
        return self.of("l2_allocation_failures") >= CROWDED_SHARE * max(1, self.rounds)

    @property
    def read(self) -> bool:
        return self.read_before or self.loaded > 0 or self.of("l2_hit_tokens") > 0


class SecondLevel:
    """Watches one engine's second level."""

    def __init__(self, board: Board, reuse: Reuse) -> None:
        self._board = board
        self._reuse = reuse
        self._evidence: _Evidence | None = None
        self.configured = False
        """Whether the engine tells of one."""
        self.ever_loaded: bool | None = None
        """By this run of the engine; None while nothing was stored or loaded."""

    def take(
        self,
        grown: Mapping[Counter, float],
        raw: Mapping[Counter, float],
        gauges: Mapping[Gauge, float],
        now: float,
        wall: float,
        *,
        restarted: bool,
    ) -> None:
        """One reading: what the counters grew by, what they show, and when (``wall``: since 1970)."""
        loaded = self._know(raw, gauges)
        evidence = self._evidence
        if evidence is None or restarted:
            # What an engine loaded before the watch began counts; what one loaded before its restart does not.
            self._begin(now, now, read_before=loaded and evidence is None)
            self._close_all()
            if evidence is None:
                return
        elif evidence.read and evidence.ended - evidence.begun > WINDOW_SECONDS:
            self._begin(evidence.ended, now, read_before=True)
        if self.configured:
            self._add(grown, now)
            self._judge(gauges, wall)

    def _know(self, raw: Mapping[Counter, float], gauges: Mapping[Gauge, float]) -> bool:
        """Notes whether there is such a level, and whether this run of the engine ever read it."""
        stored = any(raw.get(word, 0) > 0 for word in _WRITTEN)
        loaded = any(raw.get(word, 0) > 0 for word in _READ)
        told = any(word in raw for word in (*_WRITTEN, "l2_loaded_bytes", "l2_loaded_blocks"))
        self.configured = told or loaded or bool(gauges.get("l2_bytes"))
        self.ever_loaded = loaded if stored or loaded else None
        return loaded

    def _begin(self, begun: float, now: float, *, read_before: bool) -> _Evidence:
        self._evidence = evidence = _Evidence(begun, now, read_before)
        self._reuse.forget()
        return evidence

    def _add(self, grown: Mapping[Counter, float], now: float) -> None:
        evidence = self._evidence
        if evidence is None:
            return
        loads = any(grown.get(word, 0) > 0 for word in _READ)
        if loads and not evidence.read:
            # It is read: what was written without being read before that says nothing of now.
            evidence = self._begin(evidence.ended, now, read_before=True)
        stored_before, missed = evidence.stored > 0, evidence.missed
        for word, growth in grown.items():
            evidence.grown[word] = evidence.of(word) + growth
        evidence.ended = now
        evidence.loading_rounds += loads
        evidence.rounds += stored_before and evidence.missed > missed

    def _judge(self, gauges: Mapping[Gauge, float], wall: float) -> None:
        evidence = self._evidence
        if evidence is None:
            return
        pool = gauges.get("l2_bytes")
        chosen = self._write_only(evidence, pool) if not evidence.read else self._too_small(evidence, pool)
        for finding_id in IDS:
            if chosen is None or finding_id != chosen:
                self._board.clear(finding_id, SUBJECT)
        if chosen is not None:
            self._board.set(self._finding(chosen, evidence, gauges, wall))

    def _write_only(self, evidence: _Evidence, pool: float | None) -> str | None:
        """Nothing was ever loaded: which of the three?"""
        lost, distances = self._reuse.lost, self._reuse.distances()
        if not evidence.stored or not evidence.missed:
            return None
        if not lost and self._reuse.continued >= WITNESSES:
            return None  # L1 answered all that could be reused
        if pool and len(lost) >= SOME_RETURNS and distances:
            if sum(distance <= FITS * pool for distance in distances) >= SOME_RETURNS:
                return "l2-write-only"
            if distances[0] > pool:
                return "l2-too-small"
        enough = evidence.missed >= SURE_TOKENS or evidence.ended - evidence.begun >= SURE_SECONDS
        if evidence.rounds >= SURE_ROUNDS and (enough or len(lost) >= SURE_RETURNS):
            return "l2-too-small" if evidence.crowded else "l2-write-only"
        some = evidence.rounds >= SOME_ROUNDS and evidence.missed >= SOME_TOKENS
        return "l2-undecided" if some or len(lost) >= SOME_RETURNS else None

    def _too_small(self, evidence: _Evidence, pool: float | None) -> str | None:
        """It is loaded from: often enough?"""
        lost, distances = self._reuse.lost, self._reuse.distances()
        hits = evidence.of("l2_hit_tokens") / evidence.queried if evidence.queried else 0.0
        loads = evidence.loaded / evidence.stored if evidence.stored else 1.0
        if hits >= HEALTHY_SHARE or loads >= HEALTHY_SHARE:
            return None
        if not lost and self._reuse.continued >= WITNESSES:
            return None
        beyond = pool is not None and len(distances) >= SOME_RETURNS and distances[len(distances) // 2] > pool
        enough = evidence.missed >= SURE_TOKENS or evidence.ended - evidence.begun >= SURE_SECONDS
        sparse = hits < SPARSE_SHARE and loads < SPARSE_SHARE
        seen = evidence.rounds >= SURE_ROUNDS and (enough or len(lost) >= SURE_RETURNS)
        return "l2-too-small" if seen and (beyond or sparse or len(lost) >= SURE_RETURNS) else None

    def _finding(
        self, finding_id: str, evidence: _Evidence, gauges: Mapping[Gauge, float], wall: float
    ) -> Finding:
        lost, distances = self._reuse.lost, self._reuse.distances()
        numbers: dict[str, object] = {
            "seconds": round(evidence.ended - evidence.begun, 1),
            "stored_bytes": _whole(evidence.grown.get("l2_stored_bytes")),
            "loaded_bytes": _whole(evidence.grown.get("l2_loaded_bytes")),
            "stored_blocks": _whole(evidence.grown.get("l2_stored_blocks")),
            "loaded_blocks": _whole(evidence.grown.get("l2_loaded_blocks")),
            "queried_tokens": _whole(evidence.queried),
            "hit_tokens": _whole(evidence.grown.get("l2_hit_tokens")),
            "readings_with_misses": evidence.rounds,
            "readings_with_loads": evidence.loading_rounds,
            "pool_bytes": _whole(gauges.get("l2_bytes")),
            "usage_gauge": gauges.get("l2_pinned"),
            "about_the_gauge": GAUGE,
            "criteria": CRITERIA,
            "repaired_when": REPAIRED,
            "allocation_failures": _whole(evidence.grown.get("l2_allocation_failures")),
            "lost_returns": len(lost),
            "nearest_return_bytes": _whole(distances[0]) if distances else None,
            "median_return_bytes": _whole(distances[len(distances) // 2]) if distances else None,
        }
        if finding_id == "l2-write-only" and "l2_bytes" not in gauges and distances:
            numbers["unless"] = "the pool is smaller than nearest_return_bytes: then it is too small"
        if finding_id == "l2-undecided":
            numbers["hypotheses"] = {
                "write-only": "blocks are stored and never found, whatever the pool's size",
                "too-small": "blocks are pushed out of the pool before their conversation comes back",
            }
            numbers["would_decide"] = (
                "one load (then it is not write-only), the pool's size beside nearest_return_bytes, or more time:"
                f" {SURE_TOKENS:,} missed tokens or {SURE_SECONDS / 60:g} minutes without a load"
            )
        return Finding(
            id=finding_id,
            subject=SUBJECT,
            severity="critical" if finding_id == "l2-write-only" else "warning",
            first_seen=wall - (evidence.ended - evidence.begun),
            last_seen=wall,
            count=evidence.rounds,
            advice=ADVICE[finding_id],
            tokens=sum(each.tokens for each in lost) if lost else None,
            evidence={key: value for key, value in numbers.items() if value is not None},
        )

    def _close_all(self) -> None:
        for finding_id in IDS:
            self._board.clear(finding_id, SUBJECT)


ADVICE = {
    "l2-write-only": (
        "The second cache level is written and never read: it costs memory and bandwidth and saves nothing. On models"
        " with several KV groups (sliding window, draft layers) the lookup may demand all groups at once; look for a"
        " version that does not, or switch the offloading off. " + GAUGE
    ),
    "l2-too-small": (
        "The second cache level drops most prefixes before their conversation comes back: enlarge it beyond the"
        " distance of a return, or let fewer conversations share it. " + GAUGE
    ),
    "l2-undecided": (
        "The second cache level is written and was not read yet: it is broken, or too small for the distance at which"
        " conversations return. The evidence says what would decide. " + GAUGE
    ),
}


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)

"""Counters as totals that never fall."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from foreword.engines.reading import Reading
from foreword.watching.meter import Meter


def reading(started: float | None = None, /, **counters: float) -> Reading:
    return Reading(
        counters={word: {"|": value} for word, value in counters.items()},  # type: ignore[misc]
        started={} if started is None else {"": started},
    )


def test_growth_and_windows() -> None:
    meter = Meter()
    for step in range(5):
        meter.take(reading(l1_queried_tokens=1000 + 100 * step, l1_hit_tokens=500 + 80 * step), 10.0 * step)
    assert meter.totals == {"l1_queried_tokens": 400, "l1_hit_tokens": 320}, (
        "what was there before is not counted"
    )
    assert meter.raw["l1_queried_tokens"] == 1400
    window = meter.window(20)
    assert (window.seconds, window.of("l1_queried_tokens")) == (20, 200)
    assert window.share("l1_hit_tokens", "l1_queried_tokens") == 0.8
    assert meter.window(1e9).of("l1_queried_tokens") == 400
    assert window.of("preemptions") is None
    assert window.share("l2_hit_tokens", "l2_queried_tokens") is None


def test_nothing_yet() -> None:
    window = Meter().window()
    assert (window.seconds, window.of("requests")) == (0, None)


def test_a_counter_that_fell_is_a_restart() -> None:
    meter = Meter()
    assert not meter.take(reading(requests=100), 0).restarted
    step = meter.take(reading(requests=30), 5)
    assert (step.restarted, step.grown["requests"]) == (True, 30)
    assert meter.totals["requests"] == 30
    assert not meter.take(reading(requests=35), 10).restarted


def test_a_restart_that_has_caught_up_shows_in_the_start_time() -> None:
    meter = Meter()
    meter.take(reading(1000.0, requests=100), 0)
    assert not meter.take(reading(1000.4, requests=110), 5).restarted, "the same moment, told less exactly"
    step = meter.take(reading(1500.0, requests=150), 900)
    assert (step.restarted, step.grown["requests"]) == (True, 150)


def test_one_of_two_replicas_restarts() -> None:
    meter = Meter()
    meter.take(Reading({"requests": {"engine=0|": 100, "engine=1|": 50}}), 0)
    step = meter.take(Reading({"requests": {"engine=0|": 400, "engine=1|": 5}}), 5)
    assert step.restarted, "though the sum grew"
    assert step.grown["requests"] == 305


def test_a_series_that_is_away_for_a_while_is_no_restart() -> None:
    meter = Meter()
    meter.take(Reading({"requests": {"engine=0|": 100, "engine=1|": 50}}), 0)
    assert not meter.take(Reading({"requests": {"engine=0|": 110}}), 5).restarted
    assert meter.take(Reading({}), 10).grown == {}
    step = meter.take(Reading({"requests": {"engine=0|": 120, "engine=1|": 60}}), 15)
    assert (step.restarted, step.grown["requests"]) == (False, 20)


def test_other_labels_for_the_same_count_nothing_twice() -> None:
    meter = Meter()
    meter.take(Reading({"requests": {"|model=m": 100}}), 0)
    step = meter.take(Reading({"requests": {"engine=0|model=m": 104}}), 5)
    assert (step.restarted, step.grown["requests"]) == (False, 4)
    assert meter.take(Reading({"requests": {"engine=0|model=m": 105}}), 10).grown["requests"] == 1


def test_a_counter_that_appears_late_counts_from_zero() -> None:
    meter = Meter()
    meter.take(reading(requests=1), 0)
    assert meter.take(reading(requests=1, l2_loaded_bytes=5e9), 5).grown["l2_loaded_bytes"] == 5e9


Values = st.dictionaries(
    st.sampled_from(["engine=0|", "engine=1|", "|a=b"]), st.integers(0, 10**12).map(float), max_size=3
)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(["requests", "l1_hit_tokens", "l2_stored_bytes"]), Values),
            st.dictionaries(st.sampled_from(["", "engine=0"]), st.floats(0, 1e9)),
            st.floats(0, 4000),
        ),
        max_size=40,
    ),
    st.floats(0, 10_000),
)
def test_no_sequence_of_counters_gives_a_negative_rate(
    taken: list[tuple[dict[str, dict[str, float]], dict[str, float], float]], seconds: float
) -> None:
    meter, now = Meter(), 0.0
    totals = [dict(meter.totals)]
    for counters, started, passed in taken:
        now += passed
        step = meter.take(Reading(counters, {}, (), started), now)  # type: ignore[arg-type]
        assert all(growth >= 0 for growth in step.grown.values())
        window = meter.window(seconds)
        assert window.seconds >= 0
        assert all(growth >= 0 for growth in window.grown.values())
        totals.append(dict(meter.totals))
    for before, after in pairwise(totals):
        assert all(after[word] >= total for word, total in before.items())

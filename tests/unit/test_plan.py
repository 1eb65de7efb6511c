"""``foreword plan``: what it makes of logs, ledgers and described loads."""

import gzip
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ROOT
from tests.unit.standin_app import call, standin

from foreword.cli import main
from foreword.planner import ledger, logs, spec
from foreword.planner.costs import Costs, fit_prefill, fit_sizes
from foreword.planner.load import LoadError
from foreword.planner.target import Target

FORMS = ROOT / "tests/fixtures/planner/forms.log"
STORM = "conversations=8,length=253000,turns=25,growth=40,output=0,head=17k"
SETTING = {
    "mib",
    "slots",
    "every",
    "skip_above_mib",
    "evictions",
    "reread_tokens",
    "prefill_s",
    "ttft_p95_s",
    "ram_mib",
}


def plan(capsys: pytest.CaptureFixture[str], *flags: str, status: int = 0) -> Any:
    assert main(["plan", "--json", *flags]) == status
    return json.loads(capsys.readouterr().out)


def setting(found: Any, **wanted: Any) -> Any:
    (row,) = [row for row in found["settings"] if all(row[name] == value for name, value in wanted.items())]
    return row


def storm_log(turns: int = 200, conversations: int = 8, seed: int = 3) -> Iterable[str]:
    """The incident as its engine told it: room for one of eight long conversations."""
    chance = random.Random(seed)
    lengths = [253_000 + 7 * n for n in range(conversations)]
    slot, parked, evictions, first = None, False, 0, True
    for _ in range(turns):
        who = chance.randrange(conversations)
        if slot not in (None, who):
            evictions += parked
            parked = True
            yield (
                f"strata serve: conversation cache: parked {lengths[slot]} tokens in 702.1 ms; parked=1"
                f" bytes=4716362992 evictions={evictions} snapshot_bytes=4716362992 reused_kv_bytes=3870000000"
            )
        if slot == who:
            reused, lengths[who] = lengths[who] - 1, lengths[who] + 40
        else:
            reused, lengths[who] = 0 if first else 16_384, lengths[who] + 40
        slot, first = who, False
        read = lengths[who] - reused
        ms = 790 + read / 4.3
        yield (
            f"strata serve: prompt {lengths[who]} tokens = {reused} reused + {read} read in {ms:.0f} ms"
            f" ({read / ms * 1000:.1f} tok/s), 0 generated in 0 ms (0.0 tok/s), 6 checkpoints"
        )


def written(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_described_storm_in_order_of_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--mib", "8192,22488,24000,35840,36864", "--slots", "20"]
    found = plan(capsys, "--load", STORM, *flags)
    assert set(found) == {"load", "settings", "recommended"}
    assert all(set(row) == SETTING for row in found["settings"])
    evictions = [row["evictions"] for row in found["settings"]]
    # 177, 68 and 0 in a simulation of the same storm with other draws.
    assert 160 <= evictions[0] <= 185
    assert 50 <= evictions[1] <= 90
    assert evictions[2] == evictions[1]
    assert evictions[3] > 0
    assert evictions[4] == 0
    assert found["recommended"]["mib"] == 36_864
    assert found["settings"][0]["reread_tokens"] > 160 * 235_000
    assert all(row["ttft_p95_s"] is None for row in found["settings"])


def test_each_knob_is_told_what_it_is_worth_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--load", STORM)["load"]
    knobs = {
        row["knob"].partition(" ")[0] + (row["knob"][-5:] if "mib" in row["knob"] else ""): row
        for row in found["knobs"]
    }
    today = next(row for row in found["knobs"] if row["knob"] == "as today")
    assert today["lost_reuse"] == 16_384
    assert today["evictions"] > 160
    more = knobs["mib24000"]
    assert not more["meets_target"]
    assert 0 < more["evictions"] < today["evictions"] / 2 + 10
    # A denser step moves the first checkpoint back, and it is the one that stays.
    dense = next(row for row in found["knobs"] if row["knob"] == "every 4096")
    assert dense["reread_tokens"] > today["reread_tokens"]
    skip = next(row for row in found["knobs"] if row["knob"].startswith("skip"))
    assert (skip["evictions"], skip["meets_target"]) == (0, False)
    assert skip["reread_tokens"] == today["reread_tokens"]
    refuse = next(row for row in found["knobs"] if row["knob"].startswith("refuse"))
    assert refuse["refused"] == 200
    assert not refuse["meets_target"]
    cap = next(row for row in found["knobs"] if row["knob"].startswith("cap"))
    assert 0 < cap["reread_tokens"] < today["reread_tokens"]
    assert found["working_set_mib"] == 36_096


def test_none_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--load", STORM, "--mib", "8192,24000", status=1)
    assert found["recommended"] is None
    needed = found["load"]["needed"]
    assert 30_000 < needed["mib"] <= 36_096
    assert main(["plan", "--load", STORM, "--mib", "8192,24000"]) == 1
    told = capsys.readouterr().out
    assert f"Needed: --conversation-cache-mib {needed['mib']} --conversation-cache-slots 20" in told
    assert main(["plan", "--load", STORM, "--target", "ttft_p95<=1s"]) == 1
    assert "this load has none" in capsys.readouterr().out
    timed = STORM + ",think=1"
    assert main(["plan", "--load", timed, "--target", "ttft_p95<=0.1s"]) == 1
    assert "No budget meets it either" in capsys.readouterr().out


def test_no_parking_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    alone = "conversations=1,length=30k,turns=8,growth=500"
    assert main(["plan", "--load", alone]) == 0
    told = capsys.readouterr().out
    assert "Working set: none, no turn is lost without parking" in told
    assert "refused<=1%: no parking (--conversation-cache-mib 0), --prompt-cache-every 16384\n" in told
    (best,) = [line.split() for line in told.splitlines() if line.endswith("<- smallest")]
    assert best[:4] == ["off", "-", "16,384", "-"]
    assert plan(capsys, "--load", alone)["recommended"]["mib"] == 0, "for machines a number stays one"


def test_without_parking_no_knob_of_parking_is_turned_alone(capsys: pytest.CaptureFixture[str]) -> None:
    small = "conversations=6,length=30k,turns=3"
    assert main(["plan", "--load", small, "--today", "0/4", "--mib", "0", "--skip-above", "100"]) == 1
    told = capsys.readouterr().out
    assert "\nas today (parking off) " in told
    assert not re.search(r"^(slots|skip parking)", told, re.MULTILINE)
    assert re.search(r"^off +- +16,384 +- ", told, re.MULTILINE)


def test_evicting_what_never_comes_back_is_not_held_against_a_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sixty conversations one after the other, beside one that goes on: what is over is evicted."""
    load = ";".join(f"turns=6,length=20k,head=4k,think=10,start={3_000 * n}" for n in range(60))
    found = plan(capsys, "--load", load + ";turns=60,length=20k,think=3000")
    returning, best = found["load"]["enough_for_what_returns"], found["recommended"]
    assert best["evictions"] <= 0.01 * 420 < returning["evictions"]
    assert returning["mib"] < best["mib"] / 4
    main(["plan", "--load", load + ";turns=60,length=20k,think=3000"])
    assert "never came back" in capsys.readouterr().out


def test_with_think_times_there_are_times(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(
        capsys,
        "--load",
        STORM + ",think=20..40",
        "--mib",
        "8192,36864",
        "--target",
        "ttft_p95<=200,evictions<=1%",
    )
    small, large = found["settings"][0], setting(found, mib=36_864, slots=20)
    # Eight clients on an engine that reads a quarter of a million tokens for each: minutes; else seconds.
    assert small["ttft_p95_s"] > 200
    assert large["ttft_p95_s"] < 200
    assert found["load"]["times"]


def test_the_storm_from_its_log_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = written(tmp_path / "engine.log", storm_log())
    found = plan(capsys, "--log", str(log))
    load = found["load"]
    assert (load["source"], load["identities"], load["times"]) == ("log", "inferred", False)
    assert "no times" in load["notes"][0]
    assert all(row["ttft_p95_s"] is None for row in found["settings"])
    # What is simulated for the setting that ran is what the log counted.
    own = load["observed"]["evictions"]
    assert own > 150
    today = next(row for row in load["knobs"] if row["knob"] == "as today")
    assert abs(today["evictions"] - own) <= own * 0.1
    assert today["lost_reuse"] == 16_384
    assert abs(load["conversations"] - 8) <= 2
    assert found["recommended"]["mib"] > 24_000
    assert load["prefill_fit"]["source"] == "log"
    assert abs(load["prefill_fit"]["tokens_per_s"] - 4_300) < 50
    assert (load["snapshot_fit"]["samples"], load["snapshot_fit"]["error_max"]) == (own + 1, 0.0)


def test_every_form_of_the_log() -> None:
    facts = logs.read_log([FORMS])
    assert [(prompt.tokens, prompt.reused) for prompt in facts.prompts] == [
        (63_293, 0),
        (64_926, 63_292),
        (175_480, 16_384),
        (65_002, 64_925),
        (176_400, 175_479),
        (5_120, 0),
    ]
    assert facts.observed == {
        "prompts": 6,
        "reused_tokens": 63_292 + 16_384 + 64_925 + 175_479,
        "read_tokens": 63_293 + 1_634 + 159_096 + 77 + 921 + 5_120,
        "parks": 4,
        "restores": 2,
        "not_parked": 1,
        "skips": 3,
        "unreadable_lines": 2,
        "evictions": 1,
    }
    load = logs.load_of(facts)
    assert [(request.conversation, request.shared) for request in load.requests] == [
        (0, 0),
        (0, 63_297),
        (1, 0),
        (0, 64_930),
        (1, 175_488),
        (2, 0),
    ]
    assert any("1.6 GiB" in note for note in load.notes)


def test_a_log_cut_anywhere_and_bytes_of_any_kind_are_read(tmp_path: Path) -> None:
    text, log = FORMS.read_bytes(), tmp_path / "engine.log"
    whole = len(logs.read_log([FORMS]).prompts)
    for end in range(0, len(text), 11):
        log.write_bytes(text[:end])
        assert len(logs.read_log([log]).prompts) <= whole
    # Rotated in the middle of a line, which both parts then lack.
    first, second = tmp_path / "engine.log.1", tmp_path / "engine.log"
    cut = text.index(b"= 16384 reused")
    first.write_bytes(text[:cut])
    second.write_bytes(text[cut:])
    assert len(logs.read_log([first, second]).prompts) == whole - 1
    log.write_bytes(random.Random(1).randbytes(300_000) + b"\n" + text + b"\xff\xfe" * 100_000)
    assert len(logs.read_log([log]).prompts) == whole


def test_a_restart_is_no_negative_number(tmp_path: Path) -> None:
    line = "strata serve: conversation cache: parked 9 tokens in 1 ms; parked=1 bytes=9 evictions={} snapshot_bytes=9"
    facts = logs.read_log([written(tmp_path / "log", [line.format(n) for n in (2, 5, 1, 1, 4)])])
    assert (facts.evictions, facts.restarts) == (9, 1)


def test_snapshot_sizes_are_fitted_with_the_error_of_lengths_that_were_not_seen() -> None:
    measured = [(64_930, 2_510_827_952), (175_488, 3_508_535_296), (254_000, 4_716_362_992)]
    table, fit = fit_sizes(measured)
    assert table == measured
    # A line from the first to the last misses the one between.
    assert fit.max_error is not None
    assert 0.05 < fit.max_error < 0.15
    bent = [
        (n, 10**9 + 9_000 * n + (12_000 * (n - 150_000) if n > 150_000 else 0))
        for n in range(5_000, 250_000, 700)
    ]
    table, fit = fit_sizes(bent)
    assert len(table) <= 8
    assert fit.mean_error is not None
    assert fit.mean_error < 0.02
    assert fit_sizes([])[1].source == "default"
    assert fit_sizes([(1_000, 5)])[1].mean_error is None
    assert Costs().snapshot_mib(254_000) == 4_498


def test_prefill_is_fitted_from_what_was_read() -> None:
    rate, floor, fit = fit_prefill([(n, 0.8 + n / 4_000) for n in (32, 1_427, 64_000, 238_000)])
    assert (round(rate), round(floor, 2), fit.source) == (4_000, 0.8, "log")
    # Samples that would make an empty prompt take less than nothing, or more tokens less time.
    rate, floor, _ = fit_prefill([(1_000, 0.1), (10_000, 2.5), (100_000, 30.0)])
    assert floor == 0
    assert rate > 0
    assert fit_prefill([(10_000, 3.0), (20_000, 2.0), (30_000, 1.0)])[2].source == "default"
    assert fit_prefill([(10, 1.0)] * 9)[2].source == "default"


def record(number: int, time: float, line: int | None, turn: int, prompt: int, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": 10, "cached_tokens": more.pop("cached", None)}
    made = {
        "v": 1,
        "request_id": f"req_{number}",
        "time": time,
        "route": "messages",
        "line": line,
        "turn": turn,
    }
    return made | {"status": 200, "session": None, "verdict": {"name": "append-only"}, "usage": usage} | more


def test_a_ledger_knows_who_and_when(tmp_path: Path) -> None:
    first = {"verdict": {"name": "first", "shared": 0}}
    changed = {"verdict": {"name": "changed", "shared": 700, "expected": 900}}
    records = [
        record(1, 1_000.0, 1, 1, 1_000, cached=0, **first),
        record(2, 1_002.5, 2, 1, 5_000, cached=640, **first),
        record(4, 1_009.0, 1, 3, 1_500, **changed),
        record(3, 1_005.0, 1, 2, 1_200),
        record(5, 1_020.0, 1, 1, 800, cached=640, **first),  # the sidecar was restarted
        record(6, 1_021.0, None, 0, 300),
        record(7, 1_022.0, 9, 1, 300, pending=True),
        record(8, 1_023.0, 9, 1, 300, route="count_tokens"),
        record(9, 1_024.0, 9, 1, 0),
    ]
    lines = [json.dumps(each) for each in records]
    written(tmp_path / "a.jsonl", [*lines[:4], "[1", '{"half', lines[0]])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[4:]).encode()))
    written(tmp_path / "other.txt", ["no ledger"])
    (tmp_path / "folder.jsonl").mkdir()
    load = ledger.load_of(tmp_path)
    assert (load.source, load.identities, load.timed) == ("ledger", "known", True)
    told = [(each.conversation, each.prompt, each.shared, each.at) for each in load.requests]
    assert told == [
        (0, 1_000, 0, 0.0),
        (1, 5_000, 0, 2.5),
        (0, 1_200, 1_010, 5.0),
        (0, 1_500, 700, 9.0),
        (2, 800, 0, 20.0),
        (3, 300, 0, 21.0),
    ]
    assert {request.head for request in load.requests} == {640, 300}
    assert any(note.startswith("2 lines") for note in load.notes)
    assert any(note.startswith("1 exchanges have no conversation") for note in load.notes)


def headed(number: int, tokens: int, *classes: str, **more: Any) -> dict[str, Any]:
    """A record of a model with four bytes a token, whose head has a segment of 4,000 bytes of each class."""
    head = [{"path": f"x[{n}]", "class": name, "bytes": 4_000} for n, name in enumerate(classes)]
    prompt = {"bytes": 4 * tokens, "segments": 9, "head": head}
    return record(number, float(number), number, 1, tokens) | {"prompt": prompt, "model": "m"} | more


def test_where_the_system_prompt_ends_comes_from_the_segments(tmp_path: Path) -> None:
    records = [
        headed(1, 10_000, "tools", "header", "system", "first-user"),
        headed(2, 20_000, "tools", "system", "first-user", "system"),
        headed(3, 500, "tools", "system", "first-user"),  # no longer than the prompt
        headed(4, 9_000, "first-user"),
        headed(5, 9_000, *["tools"] * 64),  # the head was cut off: nobody knows where it ended
        headed(6, 9_000, prompt=None),
        headed(7, 9_000, prompt={"bytes": 0, "head": "?"}, model="other"),
        headed(8, 9_000, prompt={"bytes": 36_000, "head": ["?"]}),
    ]
    load = ledger.load_of(Path(written(tmp_path / "a.jsonl", map(json.dumps, records))))
    assert [each.system for each in load.requests] == [3_000, 2_000, 500, 0, 0, 0, 0, 0]
    assert any(note.startswith("5 exchanges have no system prompt") for note in load.notes)


def test_a_ledger_and_a_log_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = written(tmp_path / "engine.log", storm_log(turns=40))
    prompts = [prompt.tokens for prompt in logs.read_log([log]).prompts]
    folder = tmp_path / "ledger"
    folder.mkdir()
    told = [record(n, 100.0 * n, n % 8, 1 + n // 8, tokens) for n, tokens in enumerate(prompts[:-3])]
    written(folder / "one.jsonl", map(json.dumps, told))
    found = plan(capsys, "--log", str(log), "--ledger", str(folder))
    load = found["load"]
    assert (load["source"], load["requests"], load["times"]) == ("log+ledger", 37, True)
    assert load["snapshot_fit"]["source"] == "log"
    assert any("3 of 40 prompts in the log are not in the ledger" in note for note in load["notes"])
    assert found["settings"][0]["ttft_p95_s"] is not None


def test_the_stand_ins_own_log_is_read_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Three conversations on an engine with room for two of them, and the plan for more."""
    log = tmp_path / "engine.log"
    app = standin(kind="strata", log=str(log), conversation_cache_mib=1_100, prompt_cache_every=512)
    chance = random.Random(5)
    texts = [f"{name}" * 4 * (7_000 + 300 * n) for n, name in enumerate("abc")]
    messages = [[{"role": "user", "content": text}] for text in texts]
    for _ in range(30):
        history = messages[chance.randrange(3)]
        asked = {"messages": history, "vllm_xargs": {"say": "</think>ok"}}
        answer = call(app, "/v1/chat/completions", asked).json()
        history += [answer["choices"][0]["message"], {"role": "user", "content": "go on " * 30}]
    found = plan(capsys, "--log", str(log), "--today", "1100/4/512")
    load, cache = found["load"], call(app, "/metrics", method="GET").json()
    today = next(row for row in load["knobs"] if row["knob"] == "as today")
    assert load["conversations"] == 3
    assert load["observed"]["prompts"] == 30
    assert load["observed"]["reused_tokens"] == cache["totals"]["reused"]
    assert load["observed"]["parks"] == cache["conversation_cache"]["parks"]
    assert load["observed"]["unreadable_lines"] == 0
    assert today["evictions"] == load["observed"]["evictions"] > 3
    assert load["snapshot_fit"]["error_max"] < 0.01
    assert found["recommended"]["evictions"] == 0


def test_a_page_with_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    plan(capsys, "--load", STORM + ",think=30", "--mib", "8192,36864", "--html", str(page))
    text = page.read_text()
    assert text.count("<svg") == 3
    assert "http" not in text
    assert "36864" in text


@pytest.mark.parametrize(
    ("described", "what"),
    [
        ("", "empty"),
        ("conversations", "must be key=value"),
        ("people=3", "no such key"),
        ("length=ten", "must be a number"),
        ("length=9..3", "ends before it begins"),
        ("length=0", "at least 1"),
        ("order=sorted", "random or round"),
        ("edit=2", "is a share"),
        ("turns=0", "no conversations"),
        ("conversations=100k,turns=100", "more than 1,000,000 requests"),
        ("length=999M", "more than 100,000,000 tokens"),
        ("growth=9M", "more than 100,000,000 tokens"),
        ("think=3;length=5", "every group or in none"),
    ],
)
def test_a_wrong_description_is_wrong_usage(
    described: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LoadError, match=what):
        spec.described(described)
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--load", described or ";"])
    assert ended.value.code == 2
    assert "--load: " in capsys.readouterr().err


def test_a_description_is_always_the_same_load() -> None:
    described = "conversations=3,length=10k..20k,turns=2..5,edit=0.5,edit_at=4k;length=1M,turns=1,seed=9"
    load = spec.described(described)
    assert load.requests == spec.described(described).requests
    assert load.conversations == 4
    assert any(request.prompt == 1_000_000 for request in load.requests)
    assert any(request.shared == 4_000 for request in load.requests)
    assert not load.timed
    rounds = spec.described("conversations=3,turns=2,order=round").requests
    assert [request.conversation for request in rounds] == [0, 1, 2, 0, 1, 2]
    assert [request.prompt for request in rounds[::3]] == [30_000, 31_500]
    assert [request.shared for request in rounds[::3]] == [0, 30_300]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--load", STORM, "--ledger", "x"],
        ["--load", STORM, "--target", "speed<=1"],
        ["--load", STORM, "--target", "ttft_p95<=1%"],
        ["--load", STORM, "--target", "evictions<=2s"],
        ["--load", STORM, "--mib", "1,x"],
        ["--load", STORM, "--today", "1"],
        ["--load", STORM, "--prefill-rate", "0"],
    ],
)
def test_wrong_usage(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *flags])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--mib", "1,x"], "--mib: 'x': must be a whole number from 0 to 4,294,967,295"),
        (["--today", "a/b"], "--today: 'a': must be a whole number"),
        (["--prefill-rate", "fast"], "--prefill-rate: 'fast': must be a number above 0"),
        (["--html", ""], "--html: the name is empty"),
        (["--log", ""], "--log: the name is empty"),
    ],
)
def test_wrong_usage_says_what_is_right(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--load", STORM, *flags])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_files_that_cannot_be_used_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "b.jsonl.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\3" + b"\xff" * 64)
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        assert main(["plan", "--ledger", str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.startswith(f"foreword plan: {tmp_path / name}: ")
    assert main(["plan", "--load", "conversations=1,turns=1", "--html", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"foreword plan: {tmp_path}: Is a directory\n"


@pytest.mark.parametrize("flag", ["--log", "--ledger"])
def test_nothing_to_plan_for_is_a_failure(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for path in (tmp_path / "missing", empty):
        assert main(["plan", flag, str(path)]) == 1
        assert capsys.readouterr().err.startswith("foreword plan: ")


def test_targets() -> None:
    target = Target.parse("evictions<=1%, ttft_p95<=20s,ram_mib<=40000")
    assert str(target) == "evictions<=1%,ttft_p95<=20s,ram_mib<=40000"
    assert target.needs_times
    assert not Target.parse("reread<=0.05").needs_times

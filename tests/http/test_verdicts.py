"""Every verdict on randomised sessions, in front of an engine whose cache is a true one, against an oracle.

Sessions of several clients in two dialects go on in turn; whatever loses a prefix is planted at random places. Set
VERDICT_SEEDS (`7`, `100-120`) to run others than the seed that is always run.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.conformance.standin import StandIn

from . import changes
from .changes import Planted
from .conversation import Answer, Conversation, Dialect, Results, User
from .oracle import QUIET, Sent
from .stage import Actor, Stage, World, a_world

ALWAYS = 1
"""The seed of every run, on which what must be told comes up."""


def seeds() -> list[int]:
    asked = os.environ.get("VERDICT_SEEDS")
    if asked is None:
        return [ALWAYS]
    first, _, last = asked.partition("-")
    return list(range(int(first), int(last or first) + 1))


ACTS: list[tuple[float, Callable[[Stage, Actor], None]]] = [
    (0.38, Stage.go_on),
    (0.08, Stage.again),
    (
        0.12,
        lambda stage, actor: stage.change(
            actor, stage.rng.choice(changes.HEAD), grown=stage.rng.random() < 0.7
        ),
    ),
    (0.22, lambda stage, actor: stage.change(actor, stage.rng.choice(changes.TALK), grown=True)),
    (0.03, lambda stage, actor: stage.change(actor, changes.header_edited, grown=stage.rng.random() < 0.7)),
    (0.03, Stage.title),
    (0.02, Stage.resume),
    (0.03, Stage.rewind),
    (0.02, Stage.compact),
    (0.02, Stage.sub_agent),
    (0.01, lambda stage, _: stage.world.engine.forget()),
    (0.02, lambda stage, actor: stage.go_on(actor, model="an-alias-of-the-only-model")),
]
"""What may happen, and how often."""


def mixed(world: World, seed: int, steps: int) -> Stage:
    """Several clients in turn, with everything that may happen to them."""
    stage = Stage(world, seed)
    for dialect in get_args(Dialect):
        for session in (True, False):
            stage.first(stage.enter(dialect, session=session, joined=stage.rng.random() < 0.5))
    odds, acts = zip(*ACTS, strict=True)
    for act in stage.rng.choices(acts, odds, k=steps):
        act(stage, stage.rng.choice(stage.actors))
    return stage


WORLDS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "blocks of 16": (("--block-size", "16"), {}),
    "blocks of 32, system first": (("--block-size", "32", "--template", "system-first"), {"header": True}),
    "blocks of 64": (("--block-size", "64"), {"header": True}),
    "a small cache": (("--block-size", "16", "--cache-blocks", "700"), {}),
    "a template that hoists": (("--strict-system",), {"RULE_LATE_SYSTEM": "off", "mislays": True}),
    "a template that forgets": (("--drop-reasoning",), {"mislays": True}),
    "nothing reported": (("--no-prompt-tokens-details",), {"header": True}),
    "checkpoints": (("--kind", "strata"), {}),
}


STEPS = 60


def quiet(world: World, seed: int, turns: int) -> Stage:
    """Several clients in turn that only append, some of them without a session id."""
    stage = Stage(world, seed)
    for dialect in get_args(Dialect):
        for session in (True, True, False):
            stage.first(stage.enter(dialect, session=session))
    for _ in range(turns):
        actor = stage.rng.choice(stage.actors)
        if actor.it.header is not None and not world.header:
            actor.it.header = changes.billing_header(stage.rng)  # another one each time, as Claude Code's
        stage.go_on(actor)
    return stage


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("seed", seeds())
def test_whatever_happens_is_told(tmp_path: Path, name: str, seed: int) -> None:
    flags, settings = WORLDS[name]
    with a_world(tmp_path, *flags, **settings) as world:
        stage = mixed(world, seed, STEPS)
    assert not stage.faults, "\n\n".join(stage.faults[:3])
    if seed == ALWAYS:  # what comes up on any other is chance
        told = set(stage.verdicts)
        assert told >= (
            {"changed", "not-reported"} if name == "nothing reported" else {"changed", "append-only"}
        )


QUIET_WORLDS: dict[str, tuple[str, ...]] = {
    "blocks of 16": ("--block-size", "16"),
    "strict": ("--strict-system",),
}


@pytest.mark.parametrize("name", QUIET_WORLDS)
@pytest.mark.parametrize("seed", seeds())
def test_who_only_appends_alarms_nobody(tmp_path: Path, name: str, seed: int) -> None:
    with a_world(tmp_path, *QUIET_WORLDS[name]) as world:
        stage = quiet(world, seed, 100)
    assert not stage.faults, "\n\n".join(stage.faults[:3])
    assert set(stage.verdicts) <= QUIET
    assert stage.verdicts["append-only"] > 90


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Blocks of 16, nothing special."""
    with a_world(tmp_path_factory.mktemp("plain"), "--block-size", "16") as world:
        yield world


@pytest.fixture
def stage(plain: World, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """With texts of the test's own. What has gone wrong on it is told at its end."""
    stage = Stage(plain, zlib.crc32(request.node.name.encode()))
    yield stage
    assert not stage.faults, "\n\n".join(stage.faults)


@pytest.mark.parametrize("dialect", get_args(Dialect))
@pytest.mark.parametrize("change", changes.HEAD, ids=lambda change: change.__name__)
def test_an_edited_head_is_told_before_anything_was_answered(
    stage: Stage, dialect: Dialect, change: changes.Change
) -> None:
    actor = stage.enter(dialect)
    stage.first(actor)
    stage.change(actor, change, grown=False)


def test_two_users_with_the_same_words_are_two_lines(stage: Stage) -> None:
    one = stage.enter("messages")
    stage.first(one)
    two = stage.enter("messages")
    two.it = one.it.copy()
    stage.first(two)
    assert one.line != two.line
    for _ in range(4):
        stage.go_on(one)
        stage.go_on(two)


def test_two_users_without_a_session_id_part_where_they_differ(stage: Stage) -> None:
    one = stage.enter("chat", session=False)
    stage.first(one)
    two = Actor(one.it.copy(), one.headers, [*one.sent], [*one.bodies])
    stage.again(two)
    for _ in range(4):
        for actor in (one, two):
            actor.line = None if len(actor.sent) < 3 else actor.line
            stage.go_on(actor)
    assert one.line != two.line


def test_what_stands_on_the_last_turn_only_is_told_as_removed(stage: Stage) -> None:
    actor = stage.enter("messages")
    stage.first(actor)
    for _ in range(4):
        stage.grow(actor)
        last = next(turn for turn in reversed(actor.it.turns) if isinstance(turn, User | Results))
        open_file = stage.words.text(40, 200)
        last.texts.append(open_file)
        stage.goes_on(actor, doubtful=True)
        last.texts.remove(open_file)
        stage.grow(actor)
        stage.hold(actor, Planted("removed", open_file))


def test_an_effort_or_a_template_switch_is_a_parameter(stage: Stage) -> None:
    switches: list[tuple[Dialect, dict[str, Any]]] = [
        ("messages", {"output_config": {"effort": "low"}}),
        ("messages", {"thinking": {"type": "disabled"}}),
        ("chat", {"reasoning_effort": "low"}),
        ("chat", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("chat", {"cache_salt": "a tenant's own"}),
    ]
    for dialect, switch in switches:
        actor = stage.enter(dialect)
        stage.first(actor)
        stage.go_on(actor)
        before = actor.sent[-1]
        stage.grow(actor)
        stage.world.engine.forget()  # what a switch does to a prompt no two templates agree on

        def check(now: Sent, before: Sent = before) -> None:
            expected = stage.world.oracle.expected(before, now)
            verdict = now.verdict
            assert (verdict["name"], verdict["lost"], verdict["path"]) == ("parameters", expected, None)

        stage.checked(actor, check, **switch)


def test_what_is_too_short_is_told_so(stage: Stage) -> None:
    it = Conversation("chat", [], [], [User(["hi"])], joined=True)
    actor = Actor(it, {"x-session-id": f"{stage.named}-short"})
    stage.first(actor)
    it.turns += [Answer(None, "ho"), User(["on"])]
    stage.checked(actor, lambda now: stage.world.oracle.replaced(now, "below-minimum"))


def test_an_engine_that_restarts_loses_every_line(tmp_path: Path) -> None:
    flags = ("--block-size", "32")
    with ExitStack() as stack:
        world = stack.enter_context(a_world(tmp_path, *flags))
        stage = Stage(world, 3)
        for session in (True, False):
            stage.first(stage.enter("messages", session=session))
        for _ in range(3):
            for actor in stage.actors:
                stage.go_on(actor)
        world.engine.__exit__()
        world.engine = stack.enter_context(StandIn(tmp_path / "again.log", *flags, port=world.engine.port))
        for actor in stage.actors:
            stage.go_on(actor)
            assert actor.sent[-1].verdict["name"].startswith("engine-lost")
            stage.go_on(actor)
            assert actor.sent[-1].verdict["name"] == "append-only"
    assert not stage.faults, "\n\n".join(stage.faults[:3])

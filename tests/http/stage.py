"""Clients on a stage: a true engine, a sidecar in front of it, and conversations that go on in turn.

Every request is judged twice, by the sidecar and by the oracle.
"""

from __future__ import annotations

import copy
import json
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.standin import MODEL, StandIn

from foreword.standin import asks
from foreword.standin.options import Options, parse

from . import changes
from .changes import Planted
from .conversation import Answer, Call, Conversation, Dialect, Note, Piece, Results, User, Words
from .oracle import Checkpoints, Oracle, Sent
from .sidecar import CHAT, MESSAGES, Sidecar


class World:
    """An engine, a sidecar in front of it, and the oracle that knows both."""

    def __init__(
        self, engine: StandIn, options: Options, sidecar: Sidecar, oracle: Oracle, header: bool
    ) -> None:
        self.engine, self.options, self.sidecar, self.oracle = engine, options, sidecar, oracle
        self.header = header
        """Whether a billing header reaches the engine."""
        self._read = 0
        self._records: dict[str, dict[str, Any]] = {}

    def send(self, actor: Actor, conversation: Conversation | None = None, **more: Any) -> Sent:
        """Sends an actor's prompt, or another of its client's."""
        it = conversation or actor.it
        body = {"model": MODEL, "max_tokens": 64, **it.body(), **more}
        answer = self.sidecar.post(
            MESSAGES if it.dialect == "messages" else CHAT,
            json.dumps(body, ensure_ascii=False).encode(),
            actor.headers,
        )
        assert answer.status == 200, answer.body
        record = self._record(answer.headers["request-id"])
        told = answer.headers["x-foreword"]
        # Where it is open who lost the prefix, the engine is asked once the client has its answer.
        assert f"verdict={record['verdict']['name']}" in told or "verdict=engine-lost-or-template" in told
        now = Sent(self.pieces(it), asks.tokenized(self.engine.last(), self.options), record)
        assert record["usage"]["prompt_tokens"] == now.count
        assert (record["usage"]["cached_tokens"] is None) is not self.options.prompt_tokens_details
        actor.answered = answer.json()
        return now

    def pieces(self, it: Conversation) -> list[Piece]:
        return it.pieces(self.options.template, header=self.header)

    def _record(self, request_id: str) -> dict[str, Any]:
        deadline = time.monotonic() + 10
        while request_id not in self._records:
            assert time.monotonic() < deadline, "no record"
            with self.sidecar.log.open("rb") as log:
                log.seek(self._read)
                arrived = log.read()
            whole = arrived[: arrived.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                if line.startswith(b"{") and b'"outcome"' in line:
                    record = json.loads(line)
                    self._records[record["request_id"]] = record
            if not whole:
                time.sleep(0.0005)
        return self._records.pop(request_id)


@dataclass
class Actor:
    """One conversation of one client."""

    it: Conversation
    headers: dict[str, str]
    sent: list[Sent] = field(default_factory=list)
    bodies: list[Conversation] = field(default_factory=list)
    line: int | None = None
    answered: Any = None
    titled: bool = False


class Stage:
    """Plays conversations, and has each verdict checked."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.words = Words(self.rng)
        self.actors: list[Actor] = []
        self.verdicts: dict[str, int] = {}
        self.faults: list[str] = []
        self.named = f"{seed}-{id(self)}"

    # ---- who there is

    def enter(
        self, dialect: Dialect, *, session: bool = True, joined: bool = False, header: bool = True
    ) -> Actor:
        """A client with a conversation of its own, and its first request."""
        rng, text = self.rng, self.words.text
        tools = [(f"tool_{n}", text(100, 500)) for n in range(rng.randint(3, 8))]
        system = [text(500, 3000) for _ in range(1 if joined else rng.randint(1, 3))]
        it = Conversation(dialect, tools, system, [User(self._said())], joined=joined)
        it.header = changes.billing_header(rng) if header else None
        number = len(self.actors)
        headers = {"user-agent": f"client/{number}"}
        if session:
            name = "x-claude-code-session-id" if dialect == "messages" else "x-session-id"
            headers[name] = f"{self.named}-{number}"
        actor = Actor(it, headers)
        self.actors.append(actor)
        return actor

    def first(self, actor: Actor) -> None:
        self.checked(actor, lambda now: self.world.oracle.replaced(now, "first"))

    def _said(self) -> list[str]:
        return [self.words.text(40, 900) for _ in range(self.rng.choice((1, 1, 2, 3)))]

    # ---- what they do

    def checked(self, actor: Actor, check: Callable[[Sent], None], **more: Any) -> None:
        """Sends the actor's conversation, holds the verdict to ``check``, and takes note of the line."""
        now = self.world.send(actor, **more)
        try:
            check(now)
            if actor.line is not None:
                assert now.record["line"] == actor.line
        except AssertionError as error:
            before = actor.sent[-1] if actor.sent else None
            told = {key: now.record[key] for key in ("line", "turn", "verdict", "usage")}
            where = "".join(traceback.format_tb(error.__traceback__)[-1:])
            self.faults.append(f"{where}{error}\n{told}\nbefore: {before and before.record['usage']}")
        actor.line = now.record["line"]
        actor.sent.append(now)
        actor.bodies.append(actor.it.copy())
        name = now.verdict["name"]
        self.verdicts[name] = self.verdicts.get(name, 0) + 1

    def grow(self, actor: Actor) -> bool:
        """An answer, and what comes behind it. Says whether a template might print the earlier part anew."""
        rng, text, it = self.rng, self.words.text, actor.it
        answer = self._engines_answer(actor) if rng.random() < 0.3 else None
        if answer is None:
            calls = [
                Call(f"call_{text(1, 2).split()[0]}", rng.choice(it.tools)[0], text(1, 2).split()[0])
                for _ in range(rng.choice((0, 1, 1, 1, 2)))
            ]
            thinking = text(60, 800) if rng.random() < 0.6 else None
            said = text(30, 600) if not calls or rng.random() < 0.5 else None
            answer = Answer(thinking, said, calls)
        it.turns.append(answer)
        reasoned = any(isinstance(turn, Answer) and turn.thinking for turn in actor.bodies[-1].turns)
        spoke = False
        if answer.calls:
            results = [(call.id, text(20, 3000)) for call in answer.calls]
            spoke = rng.random() < 0.2
            it.turns.append(Results(results, self._said() if spoke else []))
        else:
            spoke = True
            it.turns.append(User(self._said()))
        note = rng.random() < 0.2
        if note:
            it.turns.append(Note(text(20, 200)))
        return (reasoned and spoke) or note

    def _engines_answer(self, actor: Actor) -> Answer | None:
        """What the engine said to the last request, as it was told to the client."""
        told = actor.answered
        if "choices" in told:
            message = told["choices"][0]["message"]
            return Answer(message.get("reasoning"), message["content"])
        kinds = {block["type"]: block for block in told["content"]}
        if not kinds.keys() <= {"thinking", "text"} or "text" not in kinds:
            return None
        return Answer(kinds["thinking"]["thinking"] if "thinking" in kinds else None, kinds["text"]["text"])

    def go_on(self, actor: Actor, **more: Any) -> None:
        doubtful = self.grow(actor)
        self.goes_on(actor, doubtful=doubtful, **more)

    def goes_on(self, actor: Actor, *, doubtful: bool, **more: Any) -> None:
        before = actor.sent[-1]
        self.checked(actor, lambda now: self.world.oracle.goes_on(before, now, doubtful=doubtful), **more)

    def again(self, actor: Actor) -> None:
        def check(now: Sent) -> None:
            expected = self.world.oracle.expected(before, now)
            if now.cached is None or now.cached >= expected:
                assert (now.verdict["name"], now.verdict["lost"]) in (("repeat", 0), ("repeat", None))
            else:
                self.world.oracle.goes_on(before, now, doubtful=True)

        before = actor.sent[-1]
        self.checked(actor, check)

    def change(self, actor: Actor, change: changes.Change, *, grown: bool) -> None:
        """Plants one change, perhaps together with the next turn."""
        if (
            change in changes.TALK and len(actor.it.turns) < 4
        ):  # too little to tell a change from another beginning
            self.go_on(actor)
            return
        as_it_was = actor.it.copy()
        planted = change(self.rng, self.words, actor.it)
        if planted is None or (change is changes.header_edited and not self.world.header):
            self.go_on(actor)
            return
        if self._begins_otherwise(actor):
            actor.it = as_it_was
            self.go_on(actor)
            return
        if grown:
            self.grow(actor)
        self.hold(actor, planted)

    def _begins_otherwise(self, actor: Actor) -> bool:
        """Whether no session and nothing that was said tells this from another conversation with the same first words:
        half of the head is another one.
        """
        if any(name.endswith("session-id") for name in actor.headers) or len(actor.bodies[-1].turns) > 1:
            return False
        before, after = (
            [piece.text for piece in pieces if piece.cls in ("tools", "system")]
            for pieces in (actor.sent[-1].pieces, self.world.pieces(actor.it))
        )
        return 2 * sum(len(text) for text in before if text in after) < sum(map(len, before))

    def hold(self, actor: Actor, planted: Planted) -> None:
        before = actor.sent[-1]
        piece = planted.found(before.pieces, self.world.pieces(actor.it))
        self.checked(actor, lambda now: self.world.oracle.changed(before, now, piece, planted.kind))

    def compact(self, actor: Actor) -> None:
        if len(actor.it.turns) < 9:
            self.go_on(actor)
            return
        opening = "This session is being continued from a previous conversation that ran out of context.\n"
        actor.it.turns = [User([opening + self.words.text(300, 1500)])]
        self.checked(actor, lambda now: self.world.oracle.replaced(now, "compacted"))

    def title(self, actor: Actor) -> None:
        """A request beside the conversation, with the words of its first turn."""
        it = actor.it
        if not actor.titled:
            aside = Conversation(
                it.dialect, [], [self.words.text(100, 400)], [it.copy().turns[it.first_user()]]
            )
            self.world.oracle.replaced(self.world.send(actor, aside), "first")
        actor.titled = True

    def sub_agent(self, actor: Actor) -> None:
        """Another conversation under the same session id, with a head of its own."""
        if len(self.actors) > 7:
            self.go_on(actor)
            return
        it = actor.it.copy()
        it.turns = [User(self._said())]
        it.system = [self.words.text(300, 2000) for _ in it.system]
        it.tools = it.tools[: max(3, len(it.tools) // 2)]
        other = Actor(it, actor.headers)
        self.actors.append(other)
        self.first(other)

    def resume(self, actor: Actor) -> None:
        """The same conversation under a new session id."""
        name = next((name for name in actor.headers if name.endswith("session-id")), None)
        if name is not None and len(actor.it.turns) > 1:
            actor.headers = {**actor.headers, name: f"{actor.headers[name]}r"}
        self.go_on(actor)

    def rewind(self, actor: Actor) -> None:
        """Taken up again from an earlier turn: a branch, which goes on from there."""
        answers = _answers(actor.it)
        far = [n for n, body in enumerate(actor.bodies) if _answers(body) + 2 <= answers]
        whole = [n for n in far if self._begins_with(actor, n)]
        if not whole:
            self.go_on(actor)
            return
        at = self.rng.choice(whole)
        answer = actor.it.turns[len(actor.bodies[at].turns)]
        actor.it = actor.bodies[at].copy()
        actor.sent, actor.bodies = actor.sent[: at + 1], actor.bodies[: at + 1]
        actor.line = None
        if isinstance(answer, Answer) and not answer.calls and self.rng.random() < 0.5:
            actor.it.turns += [copy.deepcopy(answer), User(self._said())]  # other words to the same answer
        else:
            self.grow(actor)
        self.goes_on(actor, doubtful=True)

    def _begins_with(self, actor: Actor, nth: int) -> bool:
        """Whether the last prompt goes on with the one of request ``nth``."""
        texts = [piece.text for piece in actor.sent[nth].pieces]
        return [piece.text for piece in actor.sent[-1].pieces[: len(texts)]] == texts


def _answers(it: Conversation) -> int:
    return sum(isinstance(turn, Answer) for turn in it.turns)


@contextmanager
def a_world(
    folder: Path, *flags: str, header: bool = False, mislays: bool = False, **settings: str
) -> Iterator[World]:
    """``flags`` are the engine's. ``header``: the billing header is left as it is."""
    options = parse(["--model", MODEL, *flags])
    oracle = Oracle(options.block_tokens, mislays) if options.kind == "vllm" else Checkpoints(mislays=mislays)
    with ExitStack() as stack:
        engine = stack.enter_context(StandIn(folder / "engine.log", *flags))
        rule = "off" if header else "on"
        told = {
            "TEMPLATE_ORDER": options.template,
            "RULE_BILLING_HEADER": rule,
            "ENGINE_METRICS_SECONDS": "0.2",
        }
        sidecar = stack.enter_context(Sidecar(engine.url, folder / "sidecar.log", **{**told, **settings}))
        sidecar.wait_until_ready()
        wait_for_block(sidecar, options)
        yield World(engine, options, sidecar, oracle, header)


def wait_for_block(sidecar: Sidecar, options: Options) -> None:
    """Until the engine's own metrics have told its block."""
    deadline = time.monotonic() + 10
    while options.kind == "vllm" and b"engine_block_tokens" not in sidecar.request("GET", "/metrics").body:
        assert time.monotonic() < deadline
        time.sleep(0.05)

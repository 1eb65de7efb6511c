//! The journal and the verdict on conversations as clients hold them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fmt::Write;

use foreword_core::json::Tape;
use foreword_core::profile::{Engine, LateSystem, Profile};
use foreword_core::prompt::cut::{Form, cut};
use foreword_core::prompt::diagnosis::{Diagnosis, Reason};
use foreword_core::prompt::journal::{Journal, Limits, Told, Who};
use foreword_core::prompt::segment::Prompt;
use foreword_core::prompt::verdict::Name;
use foreword_core::usage::EngineUsage;
use serde_json::{Value, json};

/// A journal, and an engine that is told what it reuses.
struct Room {
    journal: Journal,
    profile: Profile,
    time: f64,
}

/// What came of one request.
#[derive(Debug)]
struct Outcome {
    name: &'static str,
    line: u64,
    lost: Option<u64>,
    at: Option<String>,
}

const AMPLE: Limits = Limits { lines: 100, bytes: 64 << 20 };

impl Room {
    fn new() -> Self {
        let profile = Profile { engine: Engine::Vllm, billing_header: false, ..Profile::default() };
        Self { journal: Journal::new(AMPLE), profile, time: 1000.0 }
    }

    fn cut(&self, body: &Value) -> Prompt {
        let text = body.to_string();
        cut(Tape::new().scan(text.as_bytes()).unwrap(), Form::Translated, &self.profile)
    }

    /// Sends `body`, of which the engine reuses `reused` tokens; four bytes are a token.
    fn send(&mut self, who: &Who, body: &Value, reused: Option<u64>) -> Outcome {
        let prompt = self.cut(body);
        let standing = self.journal.look(&prompt, who);
        self.time += 1.0;
        let entry = self.journal.enter(&prompt, &standing, who, "m", self.time).unwrap();
        let usage = EngineUsage { prompt: Some(tokens(&prompt)), cached: reused, ..EngineUsage::default() };
        let message_id = format!("msg_{}", self.time);
        let told = Told { request_id: "req", message_id: Some(&message_id), time: self.time, usage };
        let verdict = self.journal.settle(&entry, &standing, &told, &self.profile);
        Outcome {
            name: verdict.name.name(),
            line: entry.line,
            lost: verdict.lost,
            at: verdict.change.map(|change| format!("{} {} {}", change.path, change.class.name(), change.kind.name())),
        }
    }

    /// As [`Room::send`], with all reused that could be: whole blocks of 16 of what the journal shares.
    fn warm(&mut self, who: &Who, body: &Value) -> Outcome {
        let prompt = self.cut(body);
        let shared = self.journal.look(&prompt, who).shared_bytes / 4 / 16 * 16;
        self.send(who, body, Some(shared))
    }
}

fn tokens(prompt: &Prompt) -> u64 {
    prompt.bytes() / 4
}

fn session(id: u64) -> Who {
    Who { session: Some(id), client: "claude-code", shown: None }
}

fn words(seed: &str, bytes: usize) -> String {
    let mut text = String::new();
    let mut n = 0;
    while text.len() < bytes {
        write!(text, "{seed} {n} ").unwrap();
        n += 1;
    }
    text
}

fn body(system: &str, first: &str) -> Value {
    json!({
        "model": "m",
        "tools": [
            {"name": "read", "description": words("read", 400), "input_schema": {"type": "object"}},
            {"name": "write", "description": words("write", 400), "input_schema": {"type": "object"}},
        ],
        "system": [{"type": "text", "text": words(system, 3000)}],
        "messages": [{"role": "user", "content": words(first, 800)}],
    })
}

fn grown(body: &Value, seed: &str) -> Value {
    let mut next = body.clone();
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": words(&format!("think {seed}"), 300), "signature": ""},
        {"type": "text", "text": words(&format!("say {seed}"), 300)},
        {"type": "tool_use", "id": format!("toolu_{seed}"), "name": "read", "input": {"path": seed}},
    ]}));
    messages.push(json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": format!("toolu_{seed}"), "content": words(&format!("result {seed}"), 900)},
    ]}));
    next
}

/// The prompts of a conversation of so many turns.
fn conversation(system: &str, first: &str, turns: usize) -> Vec<Value> {
    let mut all = vec![body(system, first)];
    for turn in 1..turns {
        all.push(grown(&all[turn - 1], &format!("{first}-{turn}")));
    }
    all
}

#[test]
fn an_append_only_conversation_raises_nothing() {
    let mut room = Room::new();
    let turns = conversation("sys", "task", 12);
    assert_eq!(room.send(&session(1), &turns[0], Some(0)).name, "first");
    for turn in &turns[1..] {
        let outcome = room.warm(&session(1), turn);
        assert_eq!((outcome.name, outcome.lost, outcome.line), ("append-only", Some(0), 1), "{outcome:?}");
    }
    let again = room.warm(&session(1), &turns[11]);
    assert_eq!((again.name, again.line), ("repeat", 1));
}

#[test]
fn interleaved_sub_agents_find_their_own_lines() {
    let mut room = Room::new();
    let (one, two) = (conversation("sys", "alpha", 6), conversation("sys", "beta", 6));
    for (turn, (a, b)) in one.iter().zip(&two).enumerate() {
        for (request, line) in [(a, 1), (b, 2)] {
            let outcome = room.warm(&session(7), request);
            let expected = if turn == 0 { "first" } else { "append-only" };
            assert_eq!((outcome.name, outcome.line), (expected, line), "{outcome:?}");
        }
    }
    // A change in one of them is told of that one.
    let mut changed = grown(&one[5], "more");
    changed["messages"][4]["content"][0]["content"] = json!("cleared");
    let outcome = room.warm(&session(7), &changed);
    assert_eq!((outcome.name, outcome.line), ("changed", 1));
    assert_eq!(outcome.at.as_deref(), Some("messages[4].content[0] history edited"));
}

#[test]
fn a_resumed_session_goes_on_and_two_users_with_the_same_words_do_not() {
    let mut room = Room::new();
    let turns = conversation("sys", "hello", 4);
    for turn in &turns[..3] {
        room.warm(&session(1), turn);
    }
    let resumed = room.warm(&session(2), &turns[3]);
    assert_eq!((resumed.name, resumed.line), ("append-only", 1));
    let other = room.warm(&session(3), &turns[0]);
    assert_eq!((other.name, other.line), ("first", 2));
    let mut own = turns[1].clone();
    own["messages"][1]["content"][1]["text"] = json!("another answer");
    let second = room.warm(&session(3), &own);
    assert_eq!((second.name, second.line, second.lost), ("append-only", 2, Some(0)));
}

#[test]
fn users_without_a_session_id_are_told_apart_by_what_they_said() {
    let mut room = Room::new();
    let who = Who { session: None, client: "qwen-code", shown: None };
    let turns = conversation("sys", "hello", 5);
    let mut others = vec![turns[0].clone()];
    for turn in 1..5 {
        others.push(grown(&others[turn - 1], &format!("other-{turn}")));
    }
    assert_eq!(room.send(&who, &turns[0], Some(0)).name, "first");
    assert_eq!(room.warm(&who, &others[0]).name, "repeat");
    for turn in 1..5 {
        for request in [&turns[turn], &others[turn]] {
            let outcome = room.warm(&who, request);
            assert_eq!((outcome.name, outcome.lost), ("append-only", Some(0)), "{outcome:?}");
        }
    }
}

#[test]
fn an_agent_that_reads_another_ones_conversation_is_no_change_without_a_session() {
    let mut room = Room::new();
    let turns = conversation("sys", "task", 6);
    for turn in &turns[..5] {
        room.warm(&Who::default(), turn);
    }
    let mut reader = grown(&turns[4], "what is worth keeping?");
    reader["system"] = json!([{"type": "text", "text": "Keep what is worth keeping."}]);
    reader["tools"] = json!([turns[4]["tools"][0].clone()]);
    let outcome = room.warm(&Who::default(), &reader);
    assert_eq!((outcome.name, outcome.line, outcome.lost), ("first", 2, Some(0)));
    let outcome = room.warm(&Who::default(), &turns[5]);
    assert_eq!((outcome.name, outcome.line, outcome.lost), ("append-only", 1, Some(0)));
    // A session says that it is the same conversation, with another head.
    let mut room = Room::new();
    for turn in &turns[..5] {
        room.warm(&session(1), turn);
    }
    let outcome = room.warm(&session(1), &reader);
    assert_eq!((outcome.name, outcome.line), ("changed", 1));
}

#[test]
fn a_part_of_the_head_of_another_length_is_an_edit_where_the_conversation_goes_on() {
    let reworded = |body: &Value| {
        let mut next = body.clone();
        next["system"][0]["text"] = json!(words("shorter", 800));
        next
    };
    let turns = conversation("sys", "task", 5);
    let edited = Some("system[0] system edited");
    let nobody = Who { client: "openai-sdk", ..Who::default() };
    for who in [&session(1), &nobody] {
        for next in [&turns[3], &turns[4]] {
            let mut room = Room::new();
            for turn in &turns[..4] {
                room.warm(who, turn);
            }
            let outcome = room.warm(who, &reworded(next));
            assert_eq!((outcome.name, outcome.line, outcome.at.as_deref()), ("changed", 1, edited));
            let outcome = room.warm(who, &grown(&reworded(next), "on"));
            assert_eq!((outcome.name, outcome.line), ("append-only", 1));
        }
    }
    // Before anything was said behind them, the same first words may be another conversation's, but not a session's.
    for (who, name) in [(&session(1), "changed"), (&nobody, "first")] {
        let mut room = Room::new();
        room.warm(who, &turns[0]);
        assert_eq!(room.warm(who, &reworded(&turns[1])).name, name);
    }
    // Another conversation behind the same examples and tools is none that goes on, and no agent's with other tools.
    let mut question = reworded(&turns[3]);
    question["messages"].as_array_mut().unwrap().pop();
    question["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": words("another", 400)}));
    let mut agent = reworded(&turns[4]);
    agent["tools"][1]["description"] = json!("another");
    for other in [question, agent] {
        let mut room = Room::new();
        for turn in &turns[..4] {
            room.warm(&nobody, turn);
        }
        assert_eq!(room.warm(&nobody, &other).name, "first");
    }
}

#[test]
fn another_question_behind_the_same_examples_is_no_change_without_a_session() {
    let ask = |question: &str| {
        let mut body = grown(&body(&words("sys", 800), &words("example", 400)), "answered");
        body["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": words(question, 200)}));
        body
    };
    let mut room = Room::new();
    let nobody = Who { client: "openai-sdk", ..Who::default() };
    for question in ["one", "two", "three"] {
        assert_eq!(room.warm(&nobody, &ask(question)).name, "first", "{question}");
    }
    // In a session it is: the user has put the question in other words.
    let mut room = Room::new();
    assert_eq!(room.warm(&session(1), &ask("one")).name, "first");
    let reworded = room.warm(&session(1), &ask("two"));
    assert_eq!(reworded.name, "changed");
}

#[test]
fn the_same_prompt_again_while_the_first_is_under_way_is_a_repeat() {
    let mut room = Room::new();
    let who = session(1);
    let prompt = room.cut(&body(&words("sys", 800), "at once"));
    let standing = room.journal.look(&prompt, &who);
    room.journal.enter(&prompt, &standing, &who, "m", 1.0).unwrap();
    assert_eq!(room.warm(&who, &body(&words("sys", 800), "at once")).name, "repeat");
}

#[test]
fn a_title_request_and_a_compaction_are_no_changes() {
    let mut room = Room::new();
    let turns = conversation("sys", "task", 6);
    room.warm(&session(1), &turns[0]);
    let title =
        json!({"model": "m", "system": "Write a title.", "tools": [], "messages": turns[0]["messages"].clone()});
    assert_eq!(room.warm(&session(1), &title).name, "first");
    for turn in &turns[1..] {
        assert_eq!(room.warm(&session(1), turn).name, "append-only");
    }
    let mut compact = turns[5].clone();
    let summary = "This session is being continued from a previous conversation. Summary: all of it.";
    compact["messages"] = json!([{"role": "user", "content": summary}]);
    let outcome = room.warm(&session(1), &compact);
    assert_eq!((outcome.name, outcome.line), ("compacted", 1));
    assert_eq!(room.warm(&session(1), &grown(&compact, "after")).name, "append-only");
    // Truncation keeps the tail.
    let long = conversation("sys", "long", 12);
    for turn in &long {
        room.warm(&session(2), turn);
    }
    let mut cut = long[11].clone();
    let kept: Vec<_> = cut["messages"].as_array().unwrap().iter().skip(18).cloned().collect();
    cut["messages"] = json!([vec![long[0]["messages"][0].clone()], kept].concat());
    assert_eq!(room.warm(&session(2), &cut).name, "compacted");
}

type Edit = fn(&mut Value);

#[test]
fn a_long_conversation_that_begins_anew_was_compacted() {
    let mut room = Room::new();
    let turns = conversation("sys", "task", 9);
    for turn in &turns[..8] {
        room.warm(&session(1), turn);
    }
    let compact = body("sys", "a summary in nobody's words");
    assert_eq!(room.warm(&session(1), &compact).name, "compacted");
    assert_eq!(room.warm(&session(1), &grown(&compact, "on")).name, "append-only");
    // Should it have been another agent after all, the long conversation goes on as well.
    let outcome = room.warm(&session(1), &turns[8]);
    assert_eq!((outcome.name, outcome.line), ("append-only", 1));
    // Another session with the same head, and one that names no session, begin on their own.
    assert_eq!(room.warm(&session(2), &body("sys", "something else")).name, "first");
    let nobody = Who { session: None, client: "qwen-code", shown: None };
    for turn in &conversation("sys", "alone", 8) {
        room.warm(&nobody, turn);
    }
    assert_eq!(room.warm(&nobody, &body("sys", "a new one")).name, "first");
}

#[test]
fn a_change_is_told_with_its_place_class_and_kind() {
    let volatile = |n: usize| format!("x-anthropic-billing-header: cc_version=2; cch=0000{n};");
    let with_header = |mut body: Value, n| {
        let system = json!([{"type": "text", "text": volatile(n)}, body["system"][0].clone()]);
        body["system"] = system;
        body
    };
    let turns = conversation("sys", "task", 6);
    let cases: [(Edit, &str); 9] = [
        (|b| b["system"][0]["text"] = json!("other"), "system[0] system edited"),
        (|b| b["tools"][1]["description"] = json!("other"), "tools[1] tools edited"),
        (
            |b| {
                b["tools"].as_array_mut().unwrap().insert(1, json!({"name": "new", "input_schema": {}}));
            },
            "tools[1] tools inserted",
        ),
        (
            |b| {
                b["tools"].as_array_mut().unwrap().remove(0);
            },
            "tools[0] tools removed",
        ),
        (|b| b["tools"].as_array_mut().unwrap().swap(0, 1), "tools[0] tools reordered"),
        (|b| b["messages"][0]["content"] = json!("edited"), "messages[0].content first-user edited"),
        (
            |b| {
                b["messages"][3]["content"].as_array_mut().unwrap().remove(0);
            },
            "messages[3].content[0] history removed",
        ),
        (|b| b["messages"][4]["content"][0]["content"] = json!("edited"), "messages[4].content[0] history edited"),
        (
            |b| {
                b["messages"].as_array_mut().unwrap().insert(1, json!({"role": "system", "content": "a note"}));
            },
            "messages[1].content late-system inserted",
        ),
    ];
    for (edit, expected) in cases {
        let mut room = Room::new();
        for turn in &turns[..5] {
            room.warm(&session(1), turn);
        }
        let mut next = turns[5].clone();
        edit(&mut next);
        let outcome = room.warm(&session(1), &next);
        assert_eq!(outcome.at.as_deref(), Some(expected));
        assert_eq!((outcome.name, outcome.line), ("changed", 1));
        let before = tokens(&room.cut(&turns[4])) / 16 * 16;
        assert!(outcome.lost.unwrap() <= before && outcome.lost.unwrap() > 0, "{outcome:?}");
    }
    let mut room = Room::new();
    for (n, turn) in turns.iter().enumerate() {
        let outcome = room.warm(&session(1), &with_header(turn.clone(), n));
        let expected = if n == 0 { None } else { Some("system[0] header edited") };
        assert_eq!(outcome.at.as_deref(), expected, "{outcome:?}");
    }
    // Blocks that stand on the last turn only.
    let mut room = Room::new();
    for (n, turn) in turns.iter().enumerate() {
        let mut request = turn.clone();
        let last = request["messages"].as_array_mut().unwrap().last_mut().unwrap();
        if n > 0 {
            last["content"].as_array_mut().unwrap().push(json!({"type": "text", "text": format!("open file {n}")}));
        }
        let outcome = room.warm(&session(1), &request);
        if n > 1 {
            let place = format!("messages[{}].content[1] last-turn removed", 2 * (n - 1));
            assert_eq!(outcome.at, Some(place), "{outcome:?}");
        }
    }
}

#[test]
fn what_the_engine_never_printed_is_no_change() {
    // An engine that takes the billing header out itself reuses what stands behind it, however it changed.
    let turns = conversation("sys", "task", 6);
    let mut room = Room::new();
    let mut before = 0;
    for (n, turn) in turns.iter().enumerate() {
        let mut body = turn.clone();
        let header = format!("x-anthropic-billing-header: cc_version=2; cch=0000{n};");
        body["system"] = json!([{"type": "text", "text": header}, turn["system"][0].clone()]);
        let outcome = room.send(&session(1), &body, Some(before));
        let expected = if n == 0 { "first" } else { "append-only" };
        assert_eq!((outcome.name, outcome.lost, outcome.at), (expected, Some(0), None), "turn {n}");
        before = tokens(&room.cut(&body)) / 16 * 16;
    }
    // Once it prints the header, the loss is the change's again.
    let mut body = turns[5].clone();
    body["system"] = json!([{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=fffff;"},
        turns[5]["system"][0].clone()]);
    let outcome = room.send(&session(1), &grown(&body, "more"), Some(0));
    assert_eq!((outcome.name, outcome.at.as_deref()), ("changed", Some("system[0] header edited")));
    assert_eq!(outcome.lost, Some(before));
}

#[test]
fn the_engine_is_blamed_for_an_intact_prefix_only() {
    let mut room = Room::new();
    let mut turns = conversation("sys", "task", 8);
    for turn in &mut turns {
        let messages = turn["messages"].as_array_mut().unwrap();
        for message in messages.iter_mut().filter(|message| message["role"] == "assistant") {
            message["content"].as_array_mut().unwrap().remove(0);
        }
    }
    for turn in &turns[..4] {
        room.warm(&session(1), turn);
    }
    let evicted = room.send(&session(1), &turns[4], Some(0));
    let before = tokens(&room.cut(&turns[3])) / 16 * 16;
    assert_eq!((evicted.name, evicted.lost), ("engine-lost", Some(before)));
    // A small change and a great loss: the engine's.
    let mut next = turns[5].clone();
    next["messages"][8]["content"][0]["content"] = json!("edited");
    assert_eq!(room.send(&session(1), &next, Some(0)).name, "engine-lost");
    let mut early = next.clone();
    early["system"][0]["text"] = json!("edited");
    assert_eq!(room.send(&session(1), &grown(&early, "on"), Some(16 * 3)).name, "changed");
    let silent = room.send(&session(1), &grown(&grown(&early, "on"), "and on"), None);
    assert_eq!((silent.name, silent.lost), ("not-reported", None));
}

#[test]
fn a_template_is_suspected_until_it_was_seen_to_keep_reasoning() {
    // A tool loop with reasoning in it, and then the user speaks again.
    let spoken = |body: &Value, seed: &str| {
        let mut next = grown(body, seed);
        let last = next["messages"].as_array_mut().unwrap().last_mut().unwrap();
        last["content"].as_array_mut().unwrap().push(json!({"type": "text", "text": words(seed, 200)}));
        next
    };
    let mut room = Room::new();
    let first = body("sys", "task");
    let working = grown(&first, "one");
    let asked = spoken(&working, "two");
    for turn in [&first, &working] {
        room.warm(&session(1), turn);
    }
    assert_eq!(room.send(&session(1), &asked, Some(0)).name, "engine-lost-or-template");
    // The reasoning in front of the user's words is gone already, if it goes: only the engine loses here.
    let again = spoken(&asked, "three");
    assert_eq!(room.send(&session(1), &again, Some(0)).name, "engine-lost");
    let working = grown(&again, "four");
    room.warm(&session(1), &working);
    let kept = spoken(&working, "five");
    assert_eq!(room.warm(&session(1), &kept).name, "append-only");
    let working = grown(&kept, "six");
    room.warm(&session(1), &working);
    assert_eq!(room.send(&session(1), &spoken(&working, "seven"), Some(0)).name, "engine-lost");
}

#[test]
fn what_was_the_last_turn_is_history_once_it_was_answered() {
    let spoken = |body: &Value, seed: &str, words: &[&str]| {
        let mut next = body.clone();
        let messages = next["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": format!("answer {seed}")}));
        let texts: Vec<_> = words.iter().map(|text| json!({"type": "text", "text": text})).collect();
        messages.push(json!({"role": "user", "content": texts}));
        next
    };
    let mut room = Room::new();
    let mut turns = vec![body("sys", "task")];
    for turn in 0..4 {
        let seed = turn.to_string();
        turns.push(spoken(&turns[turn], &seed, &[&words(&format!("aside {turn}"), 200), &words(&seed, 200)]));
    }
    for turn in &turns {
        room.warm(&session(1), turn);
    }
    // Taken up again far back, behind the same answer: a branch, not another last turn.
    let branch = spoken(&turns[1], "1", &["something else"]);
    let outcome = room.warm(&session(1), &branch);
    assert_eq!((outcome.name, outcome.line), ("append-only", 2), "{outcome:?}");
    let reworded = spoken(&turns[3], "3", &["other words"]);
    let outcome = room.warm(&session(1), &reworded);
    assert_eq!(outcome.at.as_deref(), Some("messages[8].content[0] last-turn edited"));
    let mut next = spoken(&reworded, "5", &["and on"]);
    next["messages"][4]["content"].as_array_mut().unwrap().remove(0);
    let outcome = room.warm(&session(1), &next);
    assert_eq!(outcome.at.as_deref(), Some("messages[4].content[0] history removed"));
}

#[test]
fn a_late_system_message_left_as_sent_is_suspected_until_it_was_seen_in_place() {
    let mut room = Room::new();
    room.profile.late_system = LateSystem::Off;
    let noted = |body: &Value, seed: &str| {
        let mut next = grown(body, seed);
        for message in next["messages"].as_array_mut().unwrap() {
            if message["role"] == "assistant" && message["content"][0]["type"] == "thinking" {
                message["content"].as_array_mut().unwrap().remove(0);
            }
        }
        next["messages"].as_array_mut().unwrap().push(json!({"role": "system", "content": words(seed, 100)}));
        next
    };
    let mut turns = vec![body("sys", "task")];
    for turn in 0..4 {
        turns.push(noted(&turns[turn], &format!("note {turn}")));
    }
    room.warm(&session(1), &turns[0]);
    assert_eq!(room.send(&session(1), &turns[1], Some(0)).name, "engine-lost-or-template");
    assert_eq!(room.warm(&session(1), &turns[2]).name, "append-only");
    assert_eq!(room.send(&session(1), &turns[3], Some(0)).name, "engine-lost");
}

#[test]
fn a_change_that_another_model_reads_for_the_first_time_is_a_parameter() {
    let mut room = Room::new();
    let turns = conversation("sys", "task", 6);
    for turn in &turns[..5] {
        room.warm(&session(1), turn);
    }
    let mut next = turns[5].clone();
    next["messages"][8]["content"][0]["content"] = json!("edited");
    next["model"] = json!("other");
    let outcome = room.send(&session(1), &next, Some(0));
    assert_eq!((outcome.name, outcome.at.as_deref()), ("parameters", Some("messages[8].content[0] history edited")));
}

#[test]
fn a_conversation_of_stratas_that_was_let_go_is_no_granularity() {
    let mut room = Room::new();
    room.profile.engine = Engine::Strata;
    let turns = conversation("sys", "long task", 20);
    for turn in &turns[..19] {
        room.warm(&session(1), turn);
    }
    let expected = tokens(&room.cut(&turns[18]));
    assert!((2_048..16_384).contains(&expected), "{expected}");
    let outcome = room.send(&session(1), &turns[19], Some(0));
    assert_eq!((outcome.name, outcome.lost), ("engine-lost", Some(expected)));
    // The last checkpoint stands in front of the answer's opening.
    let before = tokens(&room.cut(&turns[19]));
    let next = grown(&turns[19], "on");
    let outcome = room.send(&session(1), &next, Some(before - 3));
    assert_eq!((outcome.name, outcome.lost), ("append-only", Some(0)));
    assert_eq!(room.send(&session(1), &next, Some(tokens(&room.cut(&next)) - 4)).name, "repeat");
    // In front of the first turn there is no checkpoint: nothing can be reused.
    let mut early = grown(&next, "further");
    early["system"][0]["text"] = json!("edited");
    assert_eq!(room.send(&session(1), &early, Some(0)).name, "changed");
    let mut late = grown(&early, "and on");
    late["messages"][30]["content"][0]["content"] = json!("edited");
    assert_eq!(room.send(&session(1), &late, Some(0)).name, "engine-lost");
}

#[test]
fn a_loss_below_the_step_is_granularity() {
    let mut room = Room::new();
    let turns = conversation("sys", "task", 6);
    for turn in &turns[..4] {
        room.warm(&session(1), turn);
    }
    let before = tokens(&room.cut(&turns[3])) / 16 * 16;
    let outcome = room.send(&session(1), &turns[4], Some(before - 16));
    assert_eq!((outcome.name, outcome.lost), ("granularity", Some(16)));
    let mut strata = Room::new();
    strata.profile.engine = Engine::Strata;
    for turn in &turns[..4] {
        strata.warm(&session(1), turn);
    }
    assert_eq!(strata.send(&session(1), &turns[4], Some(500)).name, "granularity");
}

#[test]
fn a_switch_of_model_or_effort_is_a_parameter() {
    let turns = conversation("sys", "task", 4);
    for (field, value) in [("model", json!("other")), ("output_config", json!({"effort": "low"}))] {
        let mut room = Room::new();
        for turn in &turns[..3] {
            room.warm(&session(1), turn);
        }
        let mut next = turns[3].clone();
        next[field] = value;
        assert_eq!(room.send(&session(1), &next, Some(0)).name, "parameters");
    }
}

#[test]
fn too_short_to_be_reused_is_told_so() {
    let mut room = Room::new();
    let first = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    room.send(&session(1), &first, Some(0));
    let second = grown(&first, "x");
    let outcome = room.send(&session(1), &second, Some(0));
    assert_eq!((outcome.name, outcome.lost), ("below-minimum", Some(0)));
}

#[test]
fn the_journal_stays_within_its_bounds_and_forgets_the_oldest() {
    let mut room = Room::new();
    room.journal = Journal::new(Limits { lines: 10, bytes: 64 << 20 });
    let turns: Vec<_> = (0..20).map(|n| conversation("sys", &format!("task {n}"), 3)).collect();
    for (id, turns) in turns.iter().enumerate() {
        for turn in turns {
            room.warm(&session(id as u64), turn);
        }
    }
    assert_eq!(room.journal.lines().count(), 10);
    assert_eq!(room.journal.forgotten(), 10);
    let oldest = room.send(&session(0), &grown(&turns[0][2], "more"), Some(0));
    assert_eq!(oldest.name, "first");
    // Memory: all of it comes back.
    let full = room.journal.bytes();
    room.journal = Journal::new(Limits { lines: 1000, bytes: full / 2 });
    for round in 0..3 {
        for (id, turns) in turns.iter().enumerate() {
            for turn in turns {
                room.warm(&session(id as u64 + 100 * round), turn);
            }
            assert!(room.journal.bytes() <= full / 2);
        }
    }
}

#[test]
fn a_prompt_that_would_not_fit_alone_is_not_kept_and_drives_nobody_out() {
    let mut room = Room::new();
    let turns = conversation("sys", "task", 3);
    room.warm(&session(1), &turns[0]);
    room.journal = Journal::new(Limits { lines: 10, bytes: 4 * room.journal.bytes() });
    room.warm(&session(1), &turns[0]);
    let held = room.journal.bytes();
    let many: Vec<_> = (0..2000).map(|n| json!({"role": "user", "content": format!("{n}")})).collect();
    let prompt = room.cut(&json!({"model": "m", "messages": many}));
    let standing = room.journal.look(&prompt, &session(2));
    assert!(room.journal.enter(&prompt, &standing, &session(2), "m", 1.0).is_none());
    assert_eq!((room.journal.bytes(), room.journal.forgotten()), (held, 0));
    assert_eq!(room.warm(&session(1), &turns[1]).name, "append-only");
}

#[test]
fn of_a_sessions_lines_the_one_at_the_prompt_goes_on_else_the_latest_that_has_it() {
    let mut room = Room::new();
    let who = session(1);
    let begun = body(&words("sys", 800), &words("task", 800));
    let line = room.warm(&who, &begun).line;
    let (left, right) = (grown(&begun, "left"), grown(&begun, "right"));
    assert_eq!(room.warm(&who, &left).line, line);
    let branch = room.warm(&who, &right).line;
    room.warm(&who, &body(&words("other", 800), "another"));
    assert_eq!(room.warm(&who, &grown(&left, "more")).line, line);
    assert_eq!(room.warm(&who, &grown(&right, "more")).line, branch);
    assert_eq!(room.warm(&who, &begun).name, "repeat");
}

#[test]
fn a_diagnosis_names_the_earlier_answer() {
    let mut room = Room::new();
    let turns = conversation("sys", "task", 4);
    for turn in &turns[..3] {
        room.warm(&session(1), turn);
    }
    let diagnose = |room: &Room, body: &Value, id: &str| room.journal.diagnose(&room.cut(body), id);
    let id = format!("msg_{}", room.time);
    assert_eq!(diagnose(&room, &turns[3], &id), Diagnosis::Same);
    assert_eq!(diagnose(&room, &turns[3], "msg_unknown"), Diagnosis::NotFound);
    for (field, value, reason) in [
        ("model", json!("n"), Reason::Model),
        ("system", json!("x"), Reason::System),
        ("tools", json!([]), Reason::Tools),
        ("messages", json!([{"role": "user", "content": "x"}]), Reason::Messages),
    ] {
        let mut next = turns[3].clone();
        next[field] = value;
        let Diagnosis::Differs(told, ..) = diagnose(&room, &next, &id) else { panic!("{field}") };
        assert_eq!(told, reason);
    }
}

#[test]
fn every_verdict_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<_> = Name::ALL.iter().map(|name| name.name()).collect();
    assert_eq!(names.len(), Name::ALL.len());
}

#[test]
fn what_a_line_was_two_turns_ago_is_not_shared_with_the_turn_before() {
    let texts = ["one", "two", "three"].map(|text| words(text, 3000));
    // Differs from the first early, and late.
    let early = texts[0].replacen("one 20 ", "ONE 20 ", 1);
    let late = texts[0].replacen("one 200 ", "ONE 200 ", 1);
    let turns = conversation("sys", "task", 4);
    let with = |turn: usize, system: [&String; 2]| {
        let mut made = turns[turn].clone();
        made["system"] = json!(system.map(|text| json!({"type": "text", "text": text})));
        made
    };
    let [one, two, three] = &texts;
    let place = early.find("ONE").unwrap() as u64;
    for (turn_two, turn_three, within) in
        [([two, one], [one, three], 0), ([&early, two], [&late, two], place / 256 * 256)]
    {
        let mut room = Room::new();
        for (turn, system) in [[one, two], turn_two].into_iter().enumerate() {
            room.warm(&session(1), &with(turn + 1, system));
        }
        let prompt = room.cut(&with(3, turn_three));
        let standing = room.journal.look(&prompt, &session(1));
        assert_eq!(standing.relation.name(), "changed");
        assert_eq!(standing.shared_bytes, prompt.segments[1].end + within);
    }
}

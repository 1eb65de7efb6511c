//! The journal on prompts that are one text (/v1/completions), against an oracle that compares the texts themselves.

#![allow(clippy::unwrap_used, clippy::panic)]

use foreword_core::json::Tape;
use foreword_core::profile::{Engine, Profile};
use foreword_core::prompt::cut::{Form, cut};
use foreword_core::prompt::journal::{Journal, Limits, Told, Who};
use foreword_core::prompt::verdict::Verdict;
use foreword_core::usage::EngineUsage;
use proptest::prelude::*;

/// Bytes of a token, and tokens of a block.
const TOKEN: usize = 4;
const BLOCK: usize = 16;

struct Room {
    journal: Journal,
    profile: Profile,
    time: f64,
}

impl Room {
    fn new() -> Self {
        let limits = Limits { lines: 1000, bytes: 64 << 20 };
        let mut profile = Profile { engine: Engine::Vllm, ..Profile::default() };
        profile.block_tokens = Some(BLOCK as u64);
        Self { journal: Journal::new(limits), profile, time: 1000.0 }
    }

    /// Sends a prompt of which the engine reuses `reused` tokens.
    fn send(&mut self, who: &Who, prompt: &serde_json::Value, tokens: usize, reused: usize) -> (u64, Verdict) {
        let body = serde_json::json!({"model": "m", "prompt": prompt}).to_string();
        self.body(who, &body, Form::Completions, tokens, reused)
    }

    /// Sends a text as the only message of a chat.
    fn chat(&mut self, who: &Who, text: &str, reused: usize) -> (u64, Verdict) {
        let messages = serde_json::json!([{"role": "user", "content": text}]);
        let body = serde_json::json!({"model": "m", "messages": messages}).to_string();
        self.body(who, &body, Form::Chat, text.len() / TOKEN, reused)
    }

    fn body(&mut self, who: &Who, body: &str, form: Form, tokens: usize, reused: usize) -> (u64, Verdict) {
        let mut prompt = cut(Tape::new().scan(body.as_bytes()).unwrap(), form, &self.profile);
        self.journal.fit(&mut prompt, who);
        let standing = self.journal.look(&prompt, who);
        self.time += 1.0;
        let entry = self.journal.enter(&prompt, &standing, who, "m", self.time).unwrap();
        let count = |tokens: usize| Some(tokens as u64);
        let usage = EngineUsage { prompt: count(tokens), cached: count(reused), ..EngineUsage::default() };
        let told = Told { request_id: "req", message_id: None, time: self.time, usage };
        (entry.line, self.journal.settle(&entry, &standing, &told, &self.profile))
    }

    fn text(&mut self, who: &Who, text: &str, reused: usize) -> (u64, Verdict) {
        self.send(who, &text.into(), text.len() / TOKEN, reused)
    }
}

fn client(session: Option<u64>) -> Who {
    Who { session, client: "other", shown: None }
}

fn words(seed: usize, bytes: usize) -> String {
    (0..).flat_map(|n: usize| format!("{seed}.{n} ").into_bytes()).take(bytes).map(char::from).collect()
}

fn blocks(bytes: usize) -> usize {
    bytes / TOKEN / BLOCK * BLOCK
}

#[test]
fn a_text_and_a_chat_of_it_are_two_prompts() {
    // A template wraps the one and not the other: to the engine they share nothing.
    for session in [None, Some(1)] {
        let (mut room, who) = (Room::new(), client(session));
        let text = words(1, 3000);
        assert_eq!(room.chat(&who, &text, 0).1.name.name(), "first");
        assert_eq!(room.text(&who, &text, 0).1.name.name(), "first");
        let (line, repeat) = room.text(&who, &text, blocks(text.len()));
        assert_eq!((line, repeat.name.name()), (2, "repeat"));
        let (line, repeat) = room.chat(&who, &text, blocks(text.len()));
        assert_eq!((line, repeat.name.name()), (1, "repeat"));
    }
}

#[test]
fn a_text_that_grows_is_one_line_wherever_it_ends() {
    for session in [None, Some(1)] {
        let (mut room, who) = (Room::new(), client(session));
        let mut text = words(1, 3000);
        assert_eq!(room.text(&who, &text, 0).1.name.name(), "first");
        for (turn, bytes) in [1, 3, 77, 256, 1000, 12, 4096].into_iter().enumerate() {
            let before = text.len();
            text += &words(turn + 2, bytes);
            let (line, verdict) = room.text(&who, &text, blocks(before));
            assert_eq!((line, verdict.name.name(), verdict.lost), (1, "append-only", Some(0)), "{bytes}");
        }
        let whole = blocks(text.len());
        assert_eq!(room.text(&who, &text, whole).1.name.name(), "repeat");
        text += &words(99, 2000);
        let (line, lost) = room.text(&who, &text, 0);
        assert_eq!((line, lost.name.name()), (1, "engine-lost"));
        assert!(lost.lost.unwrap() >= (whole - BLOCK) as u64);
    }
}

#[test]
fn another_question_behind_the_same_beginning_is_a_text_of_its_own() {
    let (mut room, who) = (Room::new(), client(None));
    let examples = words(1, 10_000);
    for question in 0..20 {
        let text = format!("{examples}{}", words(100 + question, 90 + question));
        let (line, verdict) = room.text(&who, &text, if question == 0 { 0 } else { blocks(examples.len()) });
        assert_eq!((line, verdict.name.name()), (question as u64 + 1, "first"));
        assert_eq!(verdict.lost.unwrap_or(0), 0);
    }
}

#[test]
fn a_text_whose_beginning_changed_is_told_as_a_new_one() {
    let (mut room, who) = (Room::new(), client(Some(1)));
    let text = words(1, 9000);
    room.text(&who, &text, 0);
    let changed = format!("now {text} and more");
    assert_eq!(room.text(&who, &changed, 0).1.name.name(), "first");
}

#[test]
fn ids_of_tokens_grow_as_texts_do_and_are_none() {
    let (mut room, who) = (Room::new(), client(None));
    let ids: Vec<u32> = (0..2000).map(|n| n * 7 % 128_000).collect();
    room.send(&who, &serde_json::json!(ids[..1001]), 1001, 0);
    let (line, verdict) = room.send(&who, &serde_json::json!(ids[..1500]), 1500, 992);
    assert_eq!((line, verdict.name.name(), verdict.lost), (1, "append-only", Some(0)));
    let (line, verdict) = room.send(&who, &serde_json::json!([&ids[..2000]]), 2000, 496);
    assert_eq!((line, verdict.name.name(), verdict.lost), (1, "engine-lost", Some(1488 - 496)));
    let bytes: String = ids[..1001].iter().flat_map(|id| id.to_le_bytes()).map(char::from).collect();
    assert_eq!(room.send(&who, &bytes.into(), 1001, 0).1.name.name(), "first");
}

#[derive(Clone, Debug)]
enum Step {
    New(usize),
    Grow(prop::sample::Index, usize),
    Again(prop::sample::Index),
    Branch(prop::sample::Index, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let place = any::<prop::sample::Index>;
    prop_oneof![
        1 => (1_usize..4000).prop_map(Step::New),
        5 => (place(), 1_usize..2500).prop_map(|(text, bytes)| Step::Grow(text, bytes)),
        1 => place().prop_map(Step::Again),
        1 => (place(), 1_usize..900).prop_map(|(text, bytes)| Step::Branch(text, bytes)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever texts grow beside each other: no alarm while the engine keeps everything, and each goes on with the
    /// longest that was sent before.
    #[test]
    fn no_alarm_while_everything_is_kept(steps in prop::collection::vec(step(), 1..40), named in any::<bool>()) {
        let (mut room, who) = (Room::new(), client(named.then_some(7)));
        let mut sent: Vec<String> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let pick = |at: prop::sample::Index| (!sent.is_empty()).then(|| sent[at.index(sent.len())].clone());
            let text = match step {
                Step::New(bytes) => words(number, bytes),
                Step::Grow(at, bytes) => pick(at).unwrap_or_default() + &words(number, bytes),
                Step::Again(at) => pick(at).unwrap_or_else(|| words(number, 100)),
                Step::Branch(at, bytes) => {
                    let earlier = pick(at).unwrap_or_default();
                    format!("{}{}", &earlier[..earlier.len() / 2], words(number, bytes))
                }
            };
            let common = |other: &String| text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            let shared = sent.iter().map(common).max().unwrap_or(0);
            let whole = sent.iter().filter(|other| text.starts_with(*other)).map(String::len).max();
            // An engine reads at least the last token.
            let reused = blocks(shared.min(text.len() - 1));
            let (_, verdict) = room.text(&who, &text, reused);
            let name = verdict.name.name();
            let expected: &[&str] = match whole {
                Some(bytes) if bytes == text.len() => &["repeat", "granularity", "below-minimum"],
                Some(_) => &["append-only", "granularity", "below-minimum"],
                None => &["first", "below-minimum"],
            };
            prop_assert!(expected.contains(&name), "{name} of {expected:?}");
            prop_assert!(verdict.lost.unwrap_or(0) <= BLOCK as u64, "{verdict:?}");
            sent.push(text);
        }
    }
}

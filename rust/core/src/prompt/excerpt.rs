//! What stands where a prompt leaves its line, in its own words: for operators who have switched that on. The only
//! place where diagnosis yields a text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use super::cut::cut_keeping;
use super::seen::form_of;
use super::segment::{Class, Segment};
use crate::json::Tape;
use crate::profile::Profile;
use crate::request::{Route, behind_mark};

/// Bytes that are told on each side of a divergence, at most.
pub const SIDE: usize = 80;

/// The surroundings of the first difference between two prompts, within the segment that it lies in. Each text has at
/// most [`SIDE`] bytes and ends at a character's boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// What both have in front of it.
    pub before: String,
    /// What stands behind it in the earlier prompt; empty where that has nothing there.
    pub was: String,
    /// What stands behind it in the later one.
    pub now: String,
}

/// Compares two decoded bodies of one route whose prompts begin with the same `shared` segments.
///
/// `None` where that is not so, where they do not part there, where an image stands there, and for what is no body of the
/// route.
pub fn excerpt(route: Route, earlier: &Bytes, later: &Bytes, shared: usize, profile: &Profile) -> Option<Excerpt> {
    let read = || {
        let (before, was) = segment(route, earlier, shared, profile)?;
        let (after, now) = segment(route, later, shared, profile)?;
        let same_start = before.0.map(|segment| segment.chain) == after.0.map(|segment| segment.chain);
        let parted = before.1.map(|segment| segment.chain) != after.1.map(|segment| segment.chain);
        let image = [before.1, after.1].into_iter().flatten().any(|segment| segment.class == Class::Image);
        (same_start && parted && !image).then(|| around(&was, &now))
    };
    catch_unwind(AssertUnwindSafe(read)).ok().flatten()
}

/// The segment in front of number `index`, and that one.
type Pair = (Option<Segment>, Option<Segment>);

/// Segment `index` of a body's prompt with the one before it, and its text.
fn segment(route: Route, body: &Bytes, index: usize, profile: &Profile) -> Option<(Pair, Vec<u8>)> {
    let text = behind_mark(body);
    let mut tape = Tape::new();
    let root = tape.scan(&text).ok()?;
    let (prompt, kept) = cut_keeping(root, form_of(route, profile)?, profile, index);
    if prompt.segments.len() < index {
        return None;
    }
    let at = |index: usize| prompt.segments.get(index).copied();
    Some(((index.checked_sub(1).and_then(at), at(index)), kept))
}

/// The surroundings of the first byte at which two texts differ.
fn around(was: &[u8], now: &[u8]) -> Excerpt {
    let same = was.iter().zip(now).take_while(|(one, other)| one == other).count();
    // Where one ends, the other may go on within a character: what both have ends before it.
    let at = floor(was, same).min(floor(now, same));
    let begin = (at.saturating_sub(SIDE)..at).find(|&place| !continues(now, place)).unwrap_or(at);
    let behind = |text: &[u8]| told(&text[at..floor(text, (at + SIDE).min(text.len()))]);
    Excerpt { before: told(&now[begin..at]), was: behind(was), now: behind(now) }
}

fn told(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// The last character's boundary up to `place`.
fn floor(text: &[u8], place: usize) -> usize {
    (0..=place).rev().take(4).find(|&place| !continues(text, place)).unwrap_or(place)
}

/// Whether a character goes on at `place`.
fn continues(text: &[u8], place: usize) -> bool {
    text.get(place).is_some_and(|byte| byte & 0xC0 == 0x80)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn told_of(earlier: &str, later: &str, shared: usize) -> Option<Excerpt> {
        let body = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        excerpt(Route::Chat, &body(earlier), &body(later), shared, &Profile::default())
    }

    fn chat(system: &str, user: &str) -> String {
        let quoted = |text: &str| format!("{text:?}");
        let (system, user) = (quoted(system), quoted(user));
        format!(
            r#"{{"messages":[{{"role":"system","content":{system}}},{{"role":"user","content":{user}}},
            {{"role":"assistant","content":"yes"}},{{"role":"user","content":"go"}}]}}"#
        )
    }

    #[test]
    fn the_first_difference_is_told_with_what_stands_around_it() {
        let long = "x".repeat(200);
        let (one, two) = (format!("{long} it is 09:14 {long}"), format!("{long} it is 09:15 {long}"));
        let found = told_of(&chat(&one, "hi"), &chat(&two, "hi"), 0).unwrap();
        assert_eq!(found.before, format!("{} it is 09:1", "x".repeat(SIDE - 11)));
        assert_eq!(found.was, format!("4 {}", "x".repeat(SIDE - 2)));
        assert_eq!(found.now, format!("5 {}", "x".repeat(SIDE - 2)));
    }

    #[test]
    fn a_segment_that_is_gone_stands_against_what_came_in_its_place() {
        let found = told_of(&chat("same", "gone"), &chat("same", "came"), 1).unwrap();
        assert_eq!(found, Excerpt { before: String::new(), was: "gone".into(), now: "came".into() });
        let short = r#"{"messages":[{"role":"system","content":"same"}]}"#;
        let ended = told_of(short, &chat("same", "came"), 1).unwrap();
        assert_eq!(ended, Excerpt { before: String::new(), was: String::new(), now: "came".into() });
    }

    #[test]
    fn prompts_that_do_not_part_there_tell_nothing() {
        let one = chat("one", "hi");
        for (earlier, later, shared) in [
            (&one, &one, 0),
            (&one, &one, 9),
            (&one, &chat("two", "ho"), 1), // they part before that
            (&one, &"{".to_owned(), 0),
            (&one, &"[]".to_owned(), 1),
        ] {
            assert_eq!(told_of(earlier, later, shared), None, "{later}");
        }
        let image = |url| {
            format!(r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":"{url}"}}]}}]}}"#)
        };
        assert_eq!(told_of(&image("data:a"), &image("data:b"), 0), None);
        let body = Bytes::copy_from_slice(one.as_bytes());
        assert_eq!(excerpt(Route::Models, &body, &body, 0, &Profile::default()), None);
    }

    proptest! {
        #[test]
        fn texts_end_at_characters_and_are_bounded(same in "\\PC{0,100}", one in "\\PC{0,100}", two in "\\PC{0,100}") {
            let (was, now) = (format!("{same}{one}"), format!("{same}{two}"));
            let found = around(was.as_bytes(), now.as_bytes());
            for text in [&found.before, &found.was, &found.now] {
                prop_assert!(text.len() <= SIDE);
            }
            let holds = |whole: &str, behind: &str| whole.contains(&[&*found.before, behind].concat());
            prop_assert!(holds(&was, &found.was) && holds(&now, &found.now));
            let cut = |text: &str, whole: &str| text.len() + 3 >= SIDE || whole.ends_with(text);
            prop_assert!(cut(&found.was, &was) && cut(&found.now, &now));
            prop_assert!(found.was != found.now || was == now || found.was.len() + 3 >= SIDE);
        }

        #[test]
        fn any_bytes_will_do(was in proptest::collection::vec(any::<u8>(), 0..200), now in proptest::collection::vec(any::<u8>(), 0..200)) {
            around(&was, &now);
        }
    }
}

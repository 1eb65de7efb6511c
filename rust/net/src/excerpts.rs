//! The bodies that prompts are compared with where excerpts are switched on: the latest of each line, in memory only and
//! bounded. What was used least recently is forgotten first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use bytes::Bytes;
use foreword_core::profile::Profile;
use foreword_core::prompt::excerpt::{Excerpt, excerpt};
use foreword_core::prompt::journal::LineId;
use foreword_core::request::Route;

use crate::json::Object;
use crate::outbox::locked;

/// Bytes of all bodies together.
const BYTES: usize = 64 * 1024 * 1024;

/// Bodies by line.
#[derive(Default)]
pub(crate) struct Excerpts {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bodies: HashMap<LineId, Body>,
    /// Lines by when they were used last.
    order: BTreeMap<u64, LineId>,
    bytes: usize,
    clock: u64,
}

struct Body {
    route: Route,
    text: Bytes,
    used: u64,
}

impl Excerpts {
    /// What stands where `body` parts from the line's latest, both beginning with the same `shared` segments.
    pub(crate) fn compare(
        &self,
        line: LineId,
        route: Route,
        body: &Bytes,
        shared: usize,
        profile: &Profile,
    ) -> Option<Excerpt> {
        // The body is shared, and compared when the lock is free again.
        let earlier = {
            let kept = locked(&self.kept);
            let earlier = kept.bodies.get(&line).filter(|earlier| earlier.route == route)?;
            earlier.text.clone()
        };
        excerpt(route, &earlier, body, shared, profile)
    }

    /// Keeps a line's latest body, as far as there is room.
    pub(crate) fn keep(&self, line: LineId, route: Route, text: Bytes) {
        let mut kept = locked(&self.kept);
        kept.forget(line);
        if text.len() > BYTES {
            return;
        }
        kept.clock += 1;
        let used = kept.clock;
        kept.bytes += text.len();
        kept.order.insert(used, line);
        kept.bodies.insert(line, Body { route, text, used });
        while kept.bytes > BYTES {
            let Some((_, &oldest)) = kept.order.first_key_value() else { break };
            kept.forget(oldest);
        }
    }
}

impl Kept {
    fn forget(&mut self, line: LineId) {
        if let Some(body) = self.bodies.remove(&line) {
            self.order.remove(&body.used);
            self.bytes -= body.text.len();
        }
    }
}

/// An excerpt as records hold it.
pub(crate) fn described(excerpt: &Excerpt) -> String {
    let mut json = Object::default();
    json.text("before", Some(&excerpt.before));
    json.text("was", Some(&excerpt.was));
    json.text("now", Some(&excerpt.now));
    json.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Bytes {
        Bytes::from(format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#))
    }

    fn told(excerpts: &Excerpts, line: LineId, route: Route, text: &str) -> Option<String> {
        excerpts.compare(line, route, &body(text), 0, &Profile::default()).as_ref().map(described)
    }

    #[test]
    fn a_line_is_compared_with_its_latest_body_of_the_same_route() {
        let excerpts = Excerpts::default();
        assert_eq!(told(&excerpts, 1, Route::Chat, "b"), None);
        excerpts.keep(1, Route::Chat, body("first"));
        excerpts.keep(1, Route::Chat, body("it is 9"));
        assert_eq!(
            told(&excerpts, 1, Route::Chat, "it is \\\"10\\\"").as_deref(),
            Some(r#"{"before":"it is ","was":"9","now":"\"10\""}"#)
        );
        assert_eq!(told(&excerpts, 1, Route::Messages, "b"), None);
        assert_eq!(told(&excerpts, 2, Route::Chat, "b"), None);
    }

    #[test]
    fn memory_is_bounded_and_what_was_used_last_stays() {
        let excerpts = Excerpts::default();
        for line in 1..=5 {
            excerpts.keep(line, Route::Chat, Bytes::from(vec![b' '; BYTES / 4]));
        }
        excerpts.keep(2, Route::Chat, Bytes::from(vec![b' '; BYTES / 4]));
        excerpts.keep(6, Route::Chat, Bytes::from(vec![b' '; BYTES / 4]));
        let kept = excerpts.kept.lock().unwrap();
        let mut lines: Vec<_> = kept.bodies.keys().copied().collect();
        lines.sort_unstable();
        assert_eq!((lines, kept.bytes), (vec![2, 4, 5, 6], BYTES));
        assert_eq!(kept.order.len(), 4);
        drop(kept);
        excerpts.keep(2, Route::Chat, Bytes::from(vec![b' '; BYTES + 1]));
        let kept = excerpts.kept.lock().unwrap();
        assert!(!kept.bodies.contains_key(&2));
        assert_eq!(kept.bytes, BYTES / 4 * 3);
    }
}
